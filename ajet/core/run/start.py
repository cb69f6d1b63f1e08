"""Decides what starting a run folder means: begin, resume, say that it is complete, or ask.

`open_run` acts under the folder's lock; `describe_start` only says what it would do. Neither needs
torch.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from loguru import logger

from ajet.core.checkpoint.manifest import newest_checkpoint, step_of
from ajet.core.config import AjetConfig
from ajet.core.config.effects import Effect
from ajet.core.config.trainer import TrainerConfig
from ajet.core.errors import CheckpointError, RunChanged, RunComplete
from ajet.core.errors.codes import Code
from ajet.core.process.file_lock import is_held
from ajet.core.record.run_folder import EXPLORER_LOCK, LOCK, RunFolder, require_place
from ajet.core.record.run_log import run_log
from ajet.core.run.attempt_record import (
    AttemptRecord,
    begin_attempt,
    earlier_identity,
    end_attempt,
    next_number,
    read_attempts,
)
from ajet.core.run.identity import Change, RunIdentity, listed
from ajet.core.run.run_tasks import RunTasks, overlap_line
from ajet.core.text.redaction import redact


@dataclass(frozen=True, slots=True)
class RunStart:
    """Describes how a run starts: after which step, with which changes since the last start, and
    the line that reports it (may be empty). With `sets_aside` the folder's run is renamed first."""

    first_step: int
    changes: list[Change]
    line: str = ""
    sets_aside: bool = False

    def describe(self, total_steps: int) -> str:
        if self.line or not self.first_step:
            return self.line or "begins"
        return f"resumes after step {self.first_step} of {total_steps}"


@contextmanager
def open_run(config: AjetConfig, tasks: RunTasks) -> Iterator[RunFolder]:
    """Opens the run folder, records this attempt, and its end if it fails, and yields the folder.

    Raises RunComplete where there is nothing to do, RunChanged where an unfinished run would
    continue as another experiment, and CheckpointError where another process has the folder.
    """
    identity = RunIdentity.of(config, tasks)
    folder = RunFolder.open(config.run_folder)
    try:
        start = decide_start(config.ajet.trainer_common, folder, identity, tasks.total_steps)
        if start.sets_aside:
            if refusal := _refusal_to_set_aside(folder):
                raise CheckpointError(refusal, code=Code.RUN_FOLDER_UNUSABLE)
            folder = _set_aside(folder)
        elif not start.first_step and _change_experiment(start.changes):
            # No step was finished, but the databases may have groups of the other experiment.
            for database in (folder.buffer_db, folder.finished_db):
                for file in folder.path.glob(f"{database.name}*"):
                    file.unlink()
        attempt = AttemptRecord(
            number=next_number(folder),
            begun=datetime.now().isoformat(timespec="seconds"),
            first_step=start.first_step,
            identity=identity,
            changes=start.changes,
            accepted=_change_experiment(start.changes) and not start.sets_aside,
            total_steps=tasks.total_steps,
        )
        begin_attempt(folder, attempt, config)
        with run_log(folder.logs / "run.log"):
            if start.line:
                logger.warning(start.line)
            if (line := overlap_line(tasks.training, tasks.held_out)) is not None:
                logger.warning(line)
            yield folder
    except BaseException as error:
        # RunComplete and RunChanged are raised before an attempt begins. Secrets in an exception's
        # text must not reach the record.
        if isinstance(error, KeyboardInterrupt):
            end_attempt(folder, "stopped", _last_step(folder), "interrupted at once")
        elif not isinstance(error, RunComplete | RunChanged):
            reason = redact(f"{type(error).__name__}: {error}".partition("\n")[0])
            end_attempt(folder, "failed", _last_step(folder), reason)
        raise
    finally:
        folder.close()


def describe_start(config: AjetConfig, tasks: RunTasks) -> str:
    """Returns in one line what a run of this config would do with its folder now. Raises
    CheckpointError where the folder cannot be read."""
    folder = RunFolder(config.run_folder)
    require_place(folder.path)
    explores = config.ajet.backbone == "trinity" and config.trinity.mode == "explore"
    if is_held(folder.path / (EXPLORER_LOCK if explores else LOCK)):
        return f"is refused while another process {'explores' if explores else 'runs'} the run"
    if explores:
        return "plays episodes for the trainer of this run folder, and waits until there is one"
    identity = RunIdentity.of(config, tasks)
    try:
        start = decide_start(config.ajet.trainer_common, folder, identity, tasks.total_steps)
    except RunComplete as complete:
        return str(complete)
    except RunChanged as changed:
        return f"asks at a terminal, is refused without one: {changed}"
    if start.sets_aside and (refusal := _refusal_to_set_aside(folder)):
        return f"is refused: {refusal}"
    return start.describe(tasks.total_steps)


def decide_start(
    trainer: TrainerConfig, folder: RunFolder, identity: RunIdentity, total_steps: int
) -> RunStart:
    """Returns how a run of this config starts in the folder; raises where it does not.

        the folder has     and since then               then
        no step            anything                     a new run begins in it
        a finished run     nothing changed, or logging  RunComplete says how to train further
        a finished run     it became longer             it resumes
        a finished run     the experiment changed       it is kept as NAME.1, a new run begins
        an unfinished run  nothing changed, or logging  it resumes
        an unfinished run  the experiment changed       RunChanged, unless the changes are accepted

    `trainer_common.resume: disable` always keeps the folder's run as NAME.1 and begins anew.
    """
    earlier, aside = earlier_identity(folder), _name_aside(folder)
    # The newest checkpoint may be damaged; that is noticed when it is loaded.
    steps = [step_of(file.parent) for file in folder.checkpoints.glob("step_*/manifest.json")]
    step = max(steps, default=None)
    metrics = folder.metrics_jsonl
    has_metrics = metrics.exists() and metrics.stat().st_size > 0
    if earlier is None or (step is None and not has_metrics):
        is_named = trainer.resume not in ("auto", "disable")
        return RunStart(step or 0, [], f"resumes after {trainer.resume}" if is_named else "")
    if trainer.resume == "disable":
        line = f"the earlier run is kept as {aside.name}, and a new run begins"
        return RunStart(0, [], line, sets_aside=True)
    changes = identity.changes_since(earlier)
    if trainer.resume != "auto":  # a person chose a checkpoint, so changes need no confirmation
        step = step_of(Path(trainer.resume))
        line = f"resumes after {trainer.resume}"
        return RunStart(step, changes, _changed(f"{line}; ", changes) or line)
    # Whether the folder's run reached its last step, as it was configured then. Run folders of
    # earlier versions have no attempts.
    if attempts := read_attempts(folder):
        was_finished = attempts[-1].end == "complete"
    else:
        was_finished = step is not None and step >= total_steps and folder.summary_json.exists()
    if _change_experiment(changes) and not trainer.accept_changes:
        if was_finished or step is None:
            which = "the finished run" if was_finished else "a run that saved no checkpoint"
            line = f"changed since {which}: {listed(changes)}; it is kept as {aside.name}"
            return RunStart(0, changes, f"{line}, and a new run begins", sets_aside=True)
        raise RunChanged(
            f"{folder.path} holds a run that stopped after step {step} of {total_steps}, and "
            f"these have changed since: {listed(changes)}; continue with the changes "
            f"(--accept-changes), begin anew (--no-resume; the old run is kept as {aside.name}) "
            "or choose another ajet.experiment_name"
        )
    if was_finished and step is not None and step >= total_steps:
        newest = newest_checkpoint(folder.checkpoints)  # says so where the last one is damaged
        if newest is None or step_of(newest) < step:
            return RunStart(0 if newest is None else step_of(newest), changes)
        raise RunComplete(
            f"already complete: {step} of {total_steps} steps in {folder.path}; for more, set "
            f"ajet.trainer_common.total_training_steps above {step}; --no-resume begins anew and "
            f"keeps this run as {aside.name}"
        )
    prefix = "the finished run becomes longer: it " if was_finished else ""
    prefix += f"resumes after step {step or 0} of {total_steps}; "
    line = _changed(prefix, changes)
    schedule = trainer.optim.lr_schedule
    if schedule != "constant" and any(change.effect is Effect.LENGTH for change in changes):
        line += f"; the learning rate's {schedule} schedule ends at the new last step"
    return RunStart(step or 0, changes, line)


def _change_experiment(changes: list[Change]) -> bool:
    return any(change.effect is Effect.EXPERIMENT for change in changes)


def _changed(prefix: str, changes: list[Change]) -> str:
    return f"{prefix}changed since the last start: {listed(changes)}" if changes else ""


def _last_step(folder: RunFolder) -> int:
    """Returns the last step that was recorded."""
    steps = [0]
    with suppress(OSError, ValueError):  # a kill may have cut the last line
        for line in folder.metrics_jsonl.read_text(encoding="utf-8").splitlines():
            steps.append(int(json.loads(line)["step"]))
    return max(steps)


def _name_aside(folder: RunFolder) -> Path:
    numbered = (folder.path.with_name(f"{folder.path.name}.{n}") for n in itertools.count(1))
    return next(path for path in numbered if not path.exists())


def _refusal_to_set_aside(folder: RunFolder) -> str:
    """Returns why the folder may not be renamed now, or an empty text."""
    # Backbone trinity as two commands: the explorer holds a lock and keeps writing.
    for lock in folder.locks():
        if lock.name != LOCK and is_held(lock):
            return (
                f"{folder.path} cannot be kept as another run: a process of backbone trinity still "
                f"writes there ({lock.name}); end it first, or choose another experiment_name"
            )
    return ""


def _set_aside(folder: RunFolder) -> RunFolder:
    """Renames the folder, and returns a new one in its place."""
    aside = _name_aside(folder)
    try:
        folder.path.rename(aside)
    except OSError as error:
        raise CheckpointError(
            f"{folder.path} cannot be renamed: {error.strerror}", code=Code.RUN_FOLDER_UNUSABLE
        ) from error
    folder.close()
    new = RunFolder.open(folder.path)
    # Replies of a judging model are stored by request, so they are valid for any run.
    for replies in aside.glob("judge_replies.sqlite*"):
        shutil.copyfile(replies, new.path / replies.name)
    return new
