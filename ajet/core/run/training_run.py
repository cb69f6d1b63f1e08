"""Offers a training loop the parts of a run: steps, validation, checkpoints, the end."""

from __future__ import annotations

import time
from asyncio import Future, ensure_future, gather
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from types import TracebackType
from typing import Any

from ajet.core.checkpoint.checkpoint import checked_state, unusable
from ajet.core.config import AjetConfig
from ajet.core.config.rollout import Decoding
from ajet.core.errors import RunFailed
from ajet.core.errors.codes import Code
from ajet.core.process.interrupt import Interrupt, nothing
from ajet.core.record.evaluation import success_by_task
from ajet.core.record.progress import TrainingProgress
from ajet.core.record.run_checks import gap_line
from ajet.core.record.run_folder import RunFolder, shown_path
from ajet.core.record.run_recorder import RunRecorder, UpdateRecord
from ajet.core.record.step_warnings import warn_of_failures
from ajet.core.record.summary import RunSummary, peak_rss_bytes
from ajet.core.rollout.batch import BatchRollout, BatchSettings, StepGroups
from ajet.core.rollout.group import GroupRunner
from ajet.core.rollout.request import RolloutRequest
from ajet.core.rollout.stops import StopRequests
from ajet.core.run.attempt_record import correct_first_step, end_attempt
from ajet.core.run.run_state import ResumePoint, RunState
from ajet.core.run.run_tasks import RunTasks
from ajet.core.text.terminal import Console
from ajet.core.trajectory.trajectory import Group

Save = Callable[[int, dict[str, Any], bool], Awaitable[Awaitable[object]]]
"""Takes what a checkpoint holds, called with the step, the run's state (`RunState.as_json`) and
whether to copy it, since training continues. Awaiting what it returns writes the checkpoint."""
OnStep = Callable[[int, Sequence[Group]], None]
"""Called with each recorded step and its groups."""
Score = Callable[[Sequence[Group]], Awaitable[float]]
"""Returns the cross-entropy of given replies under the current policy."""


class TrainingRun:
    """Manages one attempt of a run, from a checkpoint or from the start to its last step.

    with run:
        await run.validate_if_due(validator)
        for step in run.steps_left():
            …                                          one step of the algorithm
            run.record_step(step, rollout, update, metrics)
            await run.validate_if_due(validator)
            await run.save_if_due()                        may return before it is written
        await run.save_if_new()
    summary = run.finish()
    """

    def __init__(
        self,
        config: AjetConfig,
        folder: RunFolder,
        tasks: RunTasks,
        *,
        save: Save,
        saves_in_background: bool,
        interrupt: Interrupt,
        console: Console,
        resume_point: ResumePoint | None = None,
    ) -> None:
        """Restores the state of `resume_point`, if any, and opens the records. The learner must
        have loaded `resume_point` already: if it refuses the checkpoint, nothing may be cut off."""
        tasks = tasks.from_the_beginning(config)  # an earlier attempt may have moved the cursor
        self.config, self.folder, self.tasks, self.interrupt = config, folder, tasks, interrupt
        self.on_step: OnStep = lambda step, groups: None
        self.on_saved: Callable[[], None] = nothing
        self.stopping_note: Callable[[], str] = lambda: (
            "stopping after this step; Ctrl-C again stops at once"
        )
        self._trainer = config.ajet.trainer_common
        self._save, self._in_background = save, saves_in_background
        self._saving: Future[object] | None = None
        self.state = RunState(cursor=tasks.cursor.state_dict())
        self._is_saved = resume_point is not None
        self._resumed_from = None if resume_point is None else resume_point.path
        if resume_point is not None:
            content, path = resume_point.state.get("run"), resume_point.path
            self.state = checked_state(RunState, content, path)
            if self.state.step != resume_point.step:
                raise unusable(path, f"its state.json is of step {self.state.step}")
            tasks.cursor.load_state_dict(self.state.cursor)
        # The recorder cuts off what an earlier attempt recorded after this step, so it comes after
        # every check.
        self._attempt = correct_first_step(folder, self.state.step)
        self.recorder = RunRecorder(
            config,
            folder,
            console,
            first_step=self.state.step + 1,
            total_steps=tasks.total_steps,
            is_resumed=resume_point is not None,
        )
        self._stops = StopRequests(folder.stops, folder.stopped_jsonl)
        self._seconds_before = self.state.seconds
        self._started_s = time.monotonic()

    def __enter__(self) -> TrainingRun:
        self.interrupt.on_first = lambda: self.progress.note(self.stopping_note())
        self.recorder.__enter__()
        if self._resumed_from is not None:
            self.progress.note(
                f"resumes after step {self.state.step} of {self.tasks.total_steps}, "
                f"from {shown_path(self._resumed_from)}"
            )
        num, available = len(self.tasks.held_out), self.tasks.num_held_out_available
        if num and (self._validates_before or self._trainer.test_freq > 0):
            how_many = f"{num:,}" if num == available else f"{num:,} of {available:,}"
            self.progress.note(
                f"validation: {how_many} held-out tasks, the same ones each time "
                "(ajet.data.val_max_tasks)"
            )
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.interrupt.on_first = nothing  # it outlives the run, and would keep its model alive
        self.recorder.__exit__(error_type, error, trace)

    @property
    def progress(self) -> TrainingProgress:
        return self.recorder.progress

    def batches(self, runner: GroupRunner) -> BatchRollout:
        """Returns the rollouts of the run's batches by `runner`, with progress on the display."""
        self._attach(runner)
        return BatchRollout(
            runner,
            self.tasks.training,
            self.tasks.cursor,
            BatchSettings.from_config(self.config),
            on_round=self.progress.phase,
            on_episode=self.progress.episode_ended,
        )

    def steps_left(self) -> Iterator[int]:
        """Yields the remaining steps, until the last one is recorded or a stop is requested."""
        while self.state.step < self.tasks.total_steps and not self.interrupt.requested:
            yield self.state.step + 1

    def rollout_done(self, step: int, rollout: StepGroups) -> None:
        """Warns of a rollout's failures, and shows that the update is next."""
        warn_of_failures(f"step {step}", rollout.all)
        self.progress.phase("update")
        self.progress.fraction(0.0)

    def record_step(
        self, step: int, rollout: StepGroups, update: UpdateRecord, metrics: dict[str, float]
    ) -> None:
        """Records a finished step and advances the run's state past it. Raises RunFailed where
        `sampler_gap` stops the run; the step is complete, so it can still be saved."""
        metrics = metrics | self.tasks.cursor.metrics() | {"run/attempt": float(self._attempt)}
        self.state.timelines += self.recorder.step(step, rollout, update, metrics)
        self.state.step = step
        self.state.num_episodes += sum(len(group.trajectories) for group in rollout.all)
        self.state.cursor = self.tasks.cursor.state_dict()
        self._is_saved = False
        self.on_step(step, rollout.groups)
        gap = self._trainer.sampler_gap
        line = gap_line(metrics, gap.max_kl) if gap.action == "stop" else None
        if line is not None:
            raise RunFailed(
                f"stopped after step {step} (ajet.trainer_common.sampler_gap.action=stop): {line}; "
                "its checkpoint is written, and the same command continues from there",
                code=Code.SAMPLER_GAP,
            )

    async def validate_if_due(self, runner: GroupRunner, score: Score | None = None) -> bool:
        """Measures success on the held-out tasks if validation is due, and returns whether it was.
        Where these are rows with given replies, `score` measures their cross-entropy."""
        moment = self._validation_due()
        if moment is None:
            return False
        if self.interrupt.requested:
            self.interrupt.stopped_early = True
            return False
        self._attach(runner)
        is_given = self.config.learns_from_rows(is_training=False)
        step, num_repeat = self.state.step, 1 if is_given else self.config.validation_repeats
        # Episodes of validations have the same seeds at every step, so only the policy differs.
        groups = await self._held_out_episodes(runner, num_repeat)
        if is_given:
            assert score is not None
            self.state.cross_entropy[moment] = cross_entropy = await score(groups)
            self.recorder.validation_of_rows(step, groups, cross_entropy)
        else:
            self.recorder.validation(step, groups)
            self.state.held_out[moment] = success_by_task(groups)
            if self._trainer.val_second_decoding and step in (0, self.tasks.total_steps):
                decoding = self.config.second_decoding
                number = self._trainer.val_pass_n or self.config.repeats_by_default(decoding)
                groups = await self._held_out_episodes(runner, number, decoding)
                self.recorder.second_validation(step, decoding, groups)
                by_moment = self.state.second_held_out.setdefault(decoding, {})
                by_moment[moment] = success_by_task(groups)
        self.state.validated_step = step
        self._is_saved = False
        return True

    async def _held_out_episodes(
        self, runner: GroupRunner, num_repeat: int, decoding: Decoding | None = None
    ) -> list[Group]:
        tasks = self.tasks.held_out
        self.progress.phase("held-out", len(tasks) * num_repeat)
        request = RolloutRequest(
            tasks, step=self.state.step, mode="eval", num_repeat=num_repeat, decoding=decoding
        )
        return await runner.rollout(request, on_episode=self.progress.episode_ended)

    async def save_if_due(self) -> None:
        """Writes a checkpoint every `save_freq` steps, or begins to write it in the background."""
        if self._saving is not None and self._saving.done():
            await self._finish_saving()  # raises where it was not written
        if self._is_multiple(self._trainer.save_freq):
            await self._begin_saving(copies=self._in_background)
            if not self._in_background:
                await self._finish_saving()

    async def save_if_new(self) -> None:
        """Writes a checkpoint, unless the last one holds this very state."""
        await self._begin_saving(copies=False)
        await self._finish_saving()

    @asynccontextmanager
    async def saved_at_end(self) -> AsyncIterator[None]:
        """Writes a checkpoint at the end, also where a rollout raises RunFailed: the policy is
        still that of the last whole step. After another error the one in progress is completed."""
        try:
            yield
        except RunFailed:
            await self.save_if_new()
            raise
        except Exception:
            if self._saving is not None:  # a failure of its own would hide this error
                await gather(self._saving, return_exceptions=True)
            raise
        await self.save_if_new()

    async def _begin_saving(self, *, copies: bool) -> None:
        if self._is_saved:
            return
        await self._finish_saving()
        self.progress.phase("checkpoint")
        self.state.seconds = self._seconds()
        writing = await self._save(self.state.step, self.state.as_json(), copies)
        self._saving = ensure_future(writing)
        self._is_saved = True

    async def _finish_saving(self) -> None:
        if self._saving is not None:
            saving, self._saving = self._saving, None
            await saving
            self.on_saved()

    def finish(self) -> RunSummary:
        """Writes the summary and the end of this attempt, and returns the summary."""
        summary = self._summary()
        summary.write(self.folder.summary_json)
        is_complete = self.state.step >= self.tasks.total_steps and not self.interrupt.stopped_early
        end_attempt(self.folder, "complete" if is_complete else "stopped", self.state.step)
        if self.state.step < self.tasks.total_steps:
            # Not after the last step, when an interrupt has cut nothing short.
            self.interrupt.stopped_early = self.interrupt.requested
            again = "the same command" if self._trainer.resume == "auto" else "--resume"
            self.progress.note(
                f"stopped after step {self.state.step} of {self.tasks.total_steps}: "
                f"{again} continues from there"
            )
        return summary

    def _validation_due(self) -> str | None:
        """Returns the label of a validation that is due now ("before" the first step, or "after"
        one), or None."""
        # A step is validated at most once, also by two attempts. A validation that an interrupt
        # prevented is due when the run resumes, since `validated_step` was not set.
        state = self.state
        if state.validated_step == state.step or not self.tasks.held_out:
            return None
        if state.step == 0:
            return "before" if self._validates_before else None
        has_start = "before" in state.held_out or "before" in state.cross_entropy
        is_end = state.step == self.tasks.total_steps and has_start
        return "after" if is_end or self._is_multiple(self._trainer.test_freq) else None

    @property
    def _validates_before(self) -> bool:
        setting = self._trainer.val_before_train
        return self._trainer.test_freq > 0 if setting is None else setting

    def _attach(self, runner: GroupRunner) -> None:
        """Lets the runner report its episodes' progress, and obey this run folder's stops."""
        runner.watch.attach(self._stops, shown_path(self.folder.path), self.progress)

    def _is_multiple(self, frequency: int) -> bool:
        return frequency > 0 and self.state.step % frequency == 0

    def _seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._started_s

    def _summary(self) -> RunSummary:
        extra: dict[str, Any] = {"held_out": self.state.held_out}
        for decoding, by_moment in self.state.second_held_out.items():
            extra[f"held_out_{decoding}"] = by_moment
        if self.state.staleness:
            extra["staleness"] = self.state.staleness
        if self.config.ajet.rows is not None:
            extra["cross_entropy"] = self.state.cross_entropy
        return RunSummary(
            steps=self.state.step,
            episodes=self.state.num_episodes,
            seed=self.config.ajet.seed,
            wall_seconds=self._seconds(),
            peak_rss_bytes=peak_rss_bytes(),
            success_before=self.state.success("before"),
            success_after=self.state.success("after"),
            success_by_decoding=self.state.success_by_decoding(self.config.validation_decoding),
            num_held_out=len(self.tasks.held_out),
            num_held_out_available=self.tasks.num_held_out_available,
            timelines=self.state.timelines.report(),
            signal=self.recorder.signal,
            warnings=[asdict(warning) for warning in self.recorder.warnings],
            extra=extra,
        )
