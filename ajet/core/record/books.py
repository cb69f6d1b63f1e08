"""What a run writes down, whatever its backbone: a loop says what happened, and nothing else.

    find_start ─> books ─> for step in steps_left():
                               rolled_out(step, groups)          warnings
                               record(step, groups, lesson, …)   episodes, metrics, progress, state
                               validated(moment, groups)         (validation.py)
                               await save_if_due()               a checkpoint, by the loop's `save`
                           finish() ─> summary.json

What a killed sitting wrote after its last checkpoint is cut off when the next one begins. Not
covered: what is in a checkpoint beside `RunState` (the learner's), and how it is written.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from loguru import logger
from rich.console import Console

from ajet.core import assembly
from ajet.core.config import AjetConfig
from ajet.core.interrupt import Interrupt
from ajet.core.record.episode_store import EpisodeStore
from ajet.core.record.evaluation import evaluate, success_by_task
from ajet.core.record.metrics import MetricsLogger
from ajet.core.record.progress import TrainingProgress
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.run_state import RunState
from ajet.core.record.step_metrics import held_out_metrics, step_metrics
from ajet.core.record.step_warnings import StepWarnings
from ajet.core.record.summary import RunSummary, peak_rss_bytes
from ajet.core.record.timeline_counts import TimelineCounts
from ajet.core.rollout.batch import BatchRollout, GroupRunner, StepGroups
from ajet.core.task.run_tasks import RunTasks
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.trajectory.samples import TokenAdvantages
from ajet.core.trajectory.trajectory import Group
from ajet.core.update.checkpoint import newest_checkpoint, read_state, step_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ajet.core.inference.chat_template import ChatTemplate

Save = Callable[[int, dict[str, Any]], Awaitable[None]]
"""Is given the step and the run's own state, and writes a checkpoint with both."""


class Taught(Protocol):
    """What the books keep of a `Lesson`."""

    @property
    def advantages(self) -> TokenAdvantages: ...
    @property
    def samples(self) -> Sequence[TrainingSample]: ...


@dataclass(frozen=True, slots=True)
class Start:
    """The checkpoint that a run goes on from: whole, and of this step."""

    path: Path
    step: int
    state: dict[str, Any]


def find_start(folder: RunFolder, resume: str) -> Start | None:
    """What `trainer_common.resume` means; None begins at step 0."""
    if resume == "disable":
        folder.set_aside()
        return None
    if resume == "auto":
        path = newest_checkpoint(folder.checkpoints)
        if path is None:
            return None
        return Start(path, step_of(path), read_state(path, is_checked=True))
    path = Path(resume)
    state = read_state(path)
    start = Start(path, step_of(path), state)
    folder.set_aside_checkpoints_after(start.step)
    return start


class Books:
    """Those of one sitting. `save` writes a checkpoint; `start` is the one that the run goes on
    from, whose learner is loaded already: a checkpoint of another model leaves the records alone.
    """

    def __init__(
        self,
        config: AjetConfig,
        folder: RunFolder,
        tasks: RunTasks,
        *,
        save: Save,
        interrupt: Interrupt,
        console: Console,
        start: Start | None = None,
    ) -> None:
        self.config, self.folder, self.tasks, self.interrupt = config, folder, tasks, interrupt
        self._trainer = config.ajet.trainer_common
        self._save = save
        self.state = RunState(cursor=tasks.cursor.state_dict())
        self._is_saved = start is not None
        if start is not None:
            self.state = RunState.from_json(start.state["run"])
            tasks.cursor.load_state_dict(self.state.cursor)
        first_step = self.state.step + 1 if start is not None else 0
        self._store = EpisodeStore(folder.episodes_db)
        self._store.truncate_from(first_step)
        self._metrics = MetricsLogger(
            list(self._trainer.logger),
            folder,
            experiment=config.experiment_name,
            project=config.ajet.project_name,
            config=config.to_dict(),
            start_step=first_step,
        )
        self.progress = TrainingProgress(
            tasks.total_steps,
            console,
            title=config.experiment_name,
            first_step=self.state.step + 1,
        )
        self._selections = assembly.selections(config)
        self._warnings = StepWarnings(config.ajet.context_tracker)
        self._seconds_before = self.state.seconds
        self._started_s = time.monotonic()

    def keep_inputs(self, tokenizer: PreTrainedTokenizerBase, template: ChatTemplate) -> None:
        """The config, the user's code and the tokenizer, so that the folder can be read alone."""
        self.folder.save_config(self.config.to_dict())
        origin = assembly.run_origin(self.config, template, self.state.begun)
        origin.write(self.folder.origin_json)
        for left_out in self.folder.save_code(assembly.user_files(self.config)):
            logger.warning(f"not copied to the run folder's code/: {left_out}")
        tokenizer.save_pretrained(self.folder.tokenizer)

    def __enter__(self) -> Books:
        self.interrupt.on_first = lambda: self.progress.note(
            "stopping after this step; Ctrl-C again stops at once"
        )
        self.progress.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.progress.__exit__(kind, error, trace)
        self._metrics.close()
        self._store.close()

    def batch_rollout(self, runner: GroupRunner) -> BatchRollout:
        """The run's batches, played by `runner` (of mode train); how far each is, is shown."""
        return BatchRollout(
            runner,
            self.tasks.training,
            self.tasks.cursor,
            assembly.batch_settings(self.config),
            on_round=self.progress.phase,
            on_episode=lambda _: self.progress.advance(),
        )

    def steps_left(self) -> Iterator[int]:
        """The steps to come, until the last one is recorded or somebody asks to stop."""
        while self.state.step < self.tasks.total_steps and not self.interrupt.requested:
            yield self.state.step + 1

    def rolled_out(self, step: int, rollout: StepGroups) -> None:
        """Says which episodes failed; what is learnt of the others comes next."""
        self._warnings.of_failures(f"step {step}", rollout.all)
        self.progress.phase("update")
        self.progress.fraction(0.0)

    def record(
        self, step: int, rollout: StepGroups, lesson: Taught, learnt: dict[str, float]
    ) -> None:
        """What the step brought, for people and for the next checkpoint."""
        groups, samples = rollout.groups, lesson.samples
        metrics = step_metrics(rollout, samples, learnt, selections=self._selections)
        self._store.write(step, rollout.all, lesson.advantages, samples)
        self._metrics.log(step, metrics)
        counts = TimelineCounts.of(groups, samples)
        self.state.timelines += counts
        self._warnings.of_metrics(metrics)
        self._warnings.of_credit(self._trainer.algorithm.adv_estimator, groups)
        self._warnings.of_timelines(f"step {step}", groups, counts)
        self.state.step = step
        self.state.num_episodes += sum(len(group.trajectories) for group in rollout.all)
        self.state.cursor = self.tasks.cursor.state_dict()
        self._is_saved = False
        self.progress.step_done(step, metrics)

    def validation_due(self) -> str | None:
        """The moment of a validation that is to come now: "before" the first step if asked,
        "after" every `test_freq` steps and at the end of a run that was validated at its beginning.
        One that an interrupt kept back comes on resuming."""
        state = self.state
        if self.interrupt.requested or state.validated_step == state.step:
            return None
        if not self.tasks.held_out:
            return None
        if state.step == 0:
            return "before" if self._trainer.val_before_train else None
        is_end = state.step == self.tasks.total_steps and "before" in state.held_out
        return "after" if is_end or self._is_multiple(self._trainer.test_freq) else None

    def validated(self, moment: str, groups: Sequence[Group]) -> None:
        """The result of that validation."""
        step = self.state.step
        self._warnings.of_failures(f"held-out tasks after step {step}", groups)
        report = evaluate(groups)
        self.state.held_out[moment] = success_by_task(groups)
        self.state.validated_step = step
        self._is_saved = False
        self._store.write(step, groups)
        self._metrics.log(step, held_out_metrics(report))
        self.progress.held_out(step, report.success.value)

    async def save_if_due(self) -> None:
        """A checkpoint every `save_freq` steps."""
        if self._is_multiple(self._trainer.save_freq):
            await self.save_if_new()

    async def save_if_new(self) -> None:
        """A checkpoint, unless the last one is of this very state."""
        if self._is_saved:
            return
        self.progress.phase("checkpoint")
        self.state.seconds = self._seconds()
        await self._save(self.state.step, self.state.as_json())
        self._is_saved = True

    def finish(self) -> RunSummary:
        """The summary, written; called last."""
        summary = self._summary()
        summary.write(self.folder.summary_json)
        if self.state.step < self.tasks.total_steps:
            again = "the same command" if self._trainer.resume == "auto" else "--resume"
            self.progress.note(
                f"stopped after step {self.state.step} of {self.tasks.total_steps}: "
                f"{again} goes on from there"
            )
        return summary

    def _is_multiple(self, frequency: int) -> bool:
        return frequency > 0 and self.state.step % frequency == 0

    def _seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._started_s

    def _summary(self) -> RunSummary:
        stale = {"staleness": self.state.staleness} if self.state.staleness else {}
        return RunSummary(
            steps=self.state.step,
            episodes=self.state.num_episodes,
            seed=self.config.ajet.seed,
            wall_seconds=self._seconds(),
            peak_rss_bytes=peak_rss_bytes(),
            success_before=self.state.success("before"),
            success_after=self.state.success("after"),
            num_held_out=len(self.tasks.held_out),
            timelines=self.state.timelines.report(),
            extra={"held_out": self.state.held_out, **stale},
        )
