"""Records each start of a run folder: what it was made of, what had changed, how it ended.

attempts/0001/attempt.json    number, time, first step, identity, changes, end
attempts/0001/config.yaml     its config, secrets replaced
attempts/0001/code/           the user's code at that time
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

import yaml

from ajet.core.config import AjetConfig
from ajet.core.config.effects import Effect
from ajet.core.config.nested import flatten
from ajet.core.config.yaml_codec import from_yaml
from ajet.core.errors import CheckpointError, RecordError
from ajet.core.errors.codes import Code
from ajet.core.record.atomic_file import write_text_atomically
from ajet.core.record.run_folder import RunFolder, read_bytes_of
from ajet.core.run.code_files import below_base_dirs, code_files
from ajet.core.run.identity import Change, RunIdentity

End = Literal["complete", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """Holds one start of a run. A process that is restarted within one command is not another.

    `begun` and `ended` are local times (ISO 8601). `first_step` is the last step before it,
    `total_steps` the last one that it would make.
    `changes` are those since the previous attempt; `accepted` is True where a person let an
    experiment continue with them. `end`, `last_step` and `reason` are None while it runs, and if it
    was killed.
    """

    number: int
    begun: str
    first_step: int
    identity: RunIdentity
    changes: Sequence[Change] = ()
    accepted: bool = False
    ended: str | None = None
    end: End | None = None
    last_step: int | None = None
    reason: str | None = None
    total_steps: int | None = None

    def describe(self, without_end: str = "no end recorded") -> str:
        """Returns the attempt as one line: its steps, how it ended, and what had changed.
        `without_end` stands for the end of one that has none."""
        last = "…" if self.last_step is None else self.last_step
        text = f"attempt {self.number}: steps {self.first_step + 1} to {last}"
        if self.last_step is not None and self.last_step <= self.first_step:
            text = f"attempt {self.number}: no step after step {self.first_step}"
        text += f", {self.end or without_end}"
        if self.reason:
            text += f" ({self.reason})"
        if self.changes:
            text += f"; {'accepted changes' if self.accepted else 'changed'}: "
            text += ", ".join(map(str, self.changes))
        return text


def read_attempts(folder: RunFolder) -> list[AttemptRecord]:
    """Returns the attempts of a run in order, without those whose file is damaged."""
    attempts = []
    for file in sorted(folder.attempts.glob("*/attempt.json")):
        try:
            content = json.loads(read_bytes_of(file))
            content["identity"] = RunIdentity(**content["identity"])
            content["changes"] = [
                Change(**{**change, "effect": Effect(change["effect"])})
                for change in content["changes"]
            ]
            attempts.append(AttemptRecord(**content))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            continue
    return attempts


def next_number(folder: RunFolder) -> int:
    """Returns the number of a new attempt: one more than the highest with a folder."""
    numbers = [int(path.name) for path in folder.attempts.glob("*") if path.name.isdecimal()]
    return 1 + max(numbers, default=0)


def begin_attempt(folder: RunFolder, attempt: AttemptRecord, config: AjetConfig) -> None:
    """Writes the attempt with a copy of the config and of the user's code."""
    path = folder.attempt(attempt.number)
    path.mkdir(parents=True, exist_ok=True)
    folder.save_config(config, path / "config.yaml")
    for file in code_files(config):
        # A file outside of the config's folders keeps its folder's name, to tell it from others.
        relative = below_base_dirs(file, config.base_dirs) or Path(*file.parts[-2:])
        target = path / "code" / relative
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        except OSError as error:
            raise CheckpointError(
                f"{target} cannot be written: {error.strerror}", code=Code.RECORD_UNWRITABLE
            ) from error
    _write(folder, attempt)


def correct_first_step(folder: RunFolder, first_step: int) -> int:
    """Writes the step of the checkpoint that was loaded into the newest attempt, and returns the
    attempt's number. A damaged checkpoint is skipped, so it may be earlier than was expected."""
    attempts = read_attempts(folder)
    if attempts and attempts[-1].first_step != first_step:
        _write(folder, replace(attempts[-1], first_step=first_step))
    return attempts[-1].number if attempts else 1


def end_attempt(folder: RunFolder, end: End, last_step: int, reason: str | None = None) -> None:
    """Completes the newest attempt, unless it has ended or there is none."""
    attempts = read_attempts(folder)
    if attempts and attempts[-1].end is None:
        ended = datetime.now().isoformat(timespec="seconds")
        _write(
            folder,
            replace(attempts[-1], end=end, last_step=last_step, ended=ended, reason=reason),
        )


def earlier_identity(folder: RunFolder) -> RunIdentity | None:
    """Returns the identity of the run's last start, or None where there was none."""
    attempts = read_attempts(folder)
    if attempts:
        return attempts[-1].identity
    # Run folders of earlier versions have only the config of their last start.
    try:
        values = from_yaml(read_bytes_of(folder.config_yaml).decode())
        return RunIdentity(config=flatten(values))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise RecordError(
            f"{folder.config_yaml} cannot be read: {reason}; begin anew with --no-resume"
        ) from error


def _write(folder: RunFolder, attempt: AttemptRecord) -> None:
    text = json.dumps(asdict(attempt), indent=1, ensure_ascii=True) + "\n"
    write_text_atomically(folder.attempt(attempt.number) / "attempt.json", text)
