"""One run in one process: the engine shares the policy's weights.

    each step: tasks -> episodes -> judge -> credit -> advantages -> update -> publish -> record

Nothing here depends on timing (the engine works in waves, seeds are paths), so a run that is killed
at any moment and resumed from its last checkpoint ends with the weights of an uninterrupted one,
bit for bit.

Not covered: several processes or devices.
"""

import time
from datetime import datetime
from pathlib import Path

from loguru import logger
from rich.console import Console

from ajet.backbones.debug.interrupt import Interrupt
from ajet.core import assembly
from ajet.core.batch_plan import BatchPlan
from ajet.core.bounded_loop import run_bounded
from ajet.core.config import AjetConfig
from ajet.core.errors import RunFailed
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.learning.learner import Lesson
from ajet.core.model.load import LoadedModel
from ajet.core.model.save import model_files
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
from ajet.core.rollout.batch import BatchRollout, StepGroups
from ajet.core.task.cursor import DataCursor
from ajet.core.task.reader import make_reader
from ajet.core.update.checkpoint import (
    Checkpoint,
    load_checkpoint,
    read_checkpoint,
    save_checkpoint,
)


def find_start(folder: RunFolder, resume: str) -> Checkpoint | None:
    """The checkpoint that `trainer_common.resume` means; None begins at step 0."""
    if resume == "auto":
        return load_checkpoint(folder.checkpoints)
    if resume == "disable":
        folder.set_aside()
        return None
    checkpoint = read_checkpoint(Path(resume))
    folder.set_aside_checkpoints_after(checkpoint.step)
    return checkpoint


class Training:
    """One sitting of one run: everything that is alive between its first step and its last."""

    def __init__(
        self, config: AjetConfig, folder: RunFolder, interrupt: Interrupt, console: Console
    ) -> None:
        self.config, self.folder, self.interrupt = config, folder, interrupt
        self.trainer = config.ajet.trainer_common
        reader = make_reader(config)
        self.tasks = reader.get_training_tasks()
        self.held_out = reader.get_validation_tasks()[: config.ajet.data.val_max_tasks]
        for agent in assembly.make_workflow(config).classes_for([*self.tasks, *self.held_out]):
            agent.check_config(config)
        self.cursor = DataCursor(
            len(self.tasks),
            config.ajet.data.train_batch_size,
            seed=config.ajet.seed,
            shuffle=config.ajet.data.shuffle,
        )
        self.total_steps = BatchPlan(config, len(self.tasks), len(self.held_out)).total_steps
        assembly.set_threads(config)
        loaded = assembly.load_policy_model(config)
        template = assembly.make_template(loaded)
        self.learner = assembly.make_learner(config, loaded)
        self.engine = assembly.make_engine(config, loaded, template)
        judge = assembly.make_judge(config)
        self.gateway = assembly.make_gateway(config)
        shared = {"judge": judge, "gateway": self.gateway}
        self.runner = assembly.make_runner(config, self.engine, template, mode="train", **shared)
        self.batch = BatchRollout(
            self.runner,
            self.tasks,
            self.cursor,
            assembly.batch_settings(config),
            on_round=lambda what, num: self.progress.phase(what, num),
            on_episode=lambda _: self.progress.advance(),
        )
        self.validator = assembly.make_runner(config, self.engine, template, mode="eval", **shared)
        # With LoRA the checkpoint holds adapters alone: no model that loads by itself.
        self.files = {} if self.learner.policy.settings.lora else model_files(loaded)
        self.state = RunState(cursor=self.cursor.state_dict())
        self.is_saved = self._resume()
        template.today = datetime.fromisoformat(self.state.begun)
        self.seconds_before = self.state.seconds
        self._keep_inputs(loaded, template)
        first_step = self.state.step + 1 if self.is_saved else 0
        self.store = EpisodeStore(folder.episodes_db)
        self.store.truncate_from(first_step)
        self.metrics = MetricsLogger(
            list(self.trainer.logger),
            folder,
            experiment=config.experiment_name,
            project=config.ajet.project_name,
            config=config.to_dict(),
            start_step=first_step,
        )
        self.progress = TrainingProgress(
            self.total_steps,
            console,
            title=config.experiment_name,
            first_step=self.state.step + 1,
        )
        self.selections = assembly.selections(config)
        self.warnings = StepWarnings(config.ajet.context_tracker)
        self.started_s = time.monotonic()

    def run(self) -> RunSummary:
        """All steps that are left; the summary is written last."""
        self.interrupt.on_first = lambda: self.progress.note(
            "stopping after this step; Ctrl-C again stops at once"
        )
        try:
            with self.progress:
                run_bounded(self._train())
        finally:
            self.metrics.close()
            self.store.close()
        summary = self._summary()
        summary.write(self.folder.summary_json)
        if self.state.step < self.total_steps:
            again = "the same command" if self.trainer.resume == "auto" else "--resume"
            self.progress.note(
                f"stopped after step {self.state.step} of {self.total_steps}: "
                f"{again} goes on from there"
            )
        return summary

    async def _train(self) -> None:
        try:
            await self._validate_if_due()
            while self.state.step < self.total_steps and not self.interrupt.requested:
                await self._train_step(self.state.step + 1)
                await self._validate_if_due()
                if self._is_multiple(self.trainer.save_freq):
                    self._save_if_new()
            self._save_if_new()
        except RunFailed:  # raised by a rollout: the policy is still that of the last whole step
            self._save_if_new()
            raise
        finally:
            self.gateway.close()
            await self.engine.close()

    async def _train_step(self, step: int) -> None:
        """The algorithm."""
        rollout = await self._rollout(step)
        self.progress.phase("update", 1)
        credited = self.learner.credit(rollout.groups)
        lesson = self.learner.estimate(credited)
        learnt = self.learner.update(step, lesson, on_progress=self.progress.fraction)
        self.engine.publish(step)
        self._record(step, rollout, lesson, learnt)

    def _record(
        self, step: int, rollout: StepGroups, lesson: Lesson, learnt: dict[str, float]
    ) -> None:
        """What the step brought, for people and for the next checkpoint."""
        groups, samples = rollout.groups, lesson.samples
        metrics = step_metrics(rollout, samples, learnt, selections=self.selections)
        self.store.write(step, rollout.all, lesson.advantages, samples)
        self.metrics.log(step, metrics)
        counts = TimelineCounts.of(groups, samples)
        self.state.timelines += counts
        self.warnings.of_metrics(metrics)
        self.warnings.of_credit(self.trainer.algorithm.adv_estimator, groups)
        self.warnings.of_timelines(f"step {step}", groups, counts)
        self.state.step = step
        self.state.num_episodes += sum(len(group.trajectories) for group in rollout.all)
        self.state.cursor = self.cursor.state_dict()
        self.is_saved = False
        self.progress.step_done(step, metrics)

    async def _rollout(self, step: int) -> StepGroups:
        rollout = await self.batch.groups_of(step)
        self.warnings.of_failures(f"step {step}", rollout.all)
        return rollout

    async def _validate_if_due(self) -> None:
        """Before the first step if asked, then every `test_freq` steps, and at the end of a run
        that was validated at its beginning. One that an interrupt kept back comes on resuming."""
        state = self.state
        if not self.held_out or self.interrupt.requested or state.validated_step == state.step:
            return
        if state.step == 0:
            if self.trainer.val_before_train:
                await self._validate("before")
        elif self._is_multiple(self.trainer.test_freq) or (
            state.step == self.total_steps and "before" in state.held_out
        ):
            await self._validate("after")

    async def _validate(self, moment: str) -> None:
        """Success on the held-out tasks, under the same seeds at every step."""
        step, num_repeat = self.state.step, self.trainer.val_pass_n
        self.progress.phase("held-out", len(self.held_out) * num_repeat)
        groups = await self.validator.rollout(
            self.held_out,
            step=step,
            mode="eval",
            num_repeat=num_repeat,
            on_episode=lambda _: self.progress.advance(),
        )
        self.warnings.of_failures(f"held-out tasks after step {step}", groups)
        report = evaluate(groups)
        self.state.held_out[moment] = success_by_task(groups)
        self.state.validated_step = step
        self.is_saved = False
        self.store.write(step, groups)
        self.metrics.log(step, held_out_metrics(report))
        self.progress.held_out(step, report.success.value)

    def _is_multiple(self, frequency: int) -> bool:
        return frequency > 0 and self.state.step % frequency == 0

    def _save_if_new(self) -> None:
        if self.is_saved:
            return
        self.progress.phase("checkpoint")
        self.state.seconds = self._seconds()
        tensors, state = self.learner.state_dict()
        save_checkpoint(
            self.folder.checkpoints,
            self.state.step,
            tensors,
            state | {"run": self.state.as_json()},
            keep=self.trainer.max_checkpoints_to_keep,
            files=self.files,
        )
        self.is_saved = True

    def _keep_inputs(self, loaded: LoadedModel, template: ChatTemplate) -> None:
        """The config, the user's code and the tokenizer, so that the folder can be read alone."""
        self.folder.save_config(self.config.to_dict())
        origin = assembly.run_origin(self.config, template, self.state.begun)
        origin.write(self.folder.origin_json)
        for left_out in self.folder.save_code(assembly.user_files(self.config)):
            logger.warning(f"not copied to the run folder's code/: {left_out}")
        loaded.tokenizer.save_pretrained(self.folder.tokenizer)

    def _resume(self) -> bool:
        """Whether there was a checkpoint to go on from."""
        checkpoint = find_start(self.folder, self.trainer.resume)
        if checkpoint is None:
            return False
        self.state = RunState.from_json(checkpoint.state["run"])
        self.cursor.load_state_dict(self.state.cursor)
        self.learner.load_state_dict(checkpoint.tensors, checkpoint.state)
        self.engine.publish(checkpoint.step)
        return True

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started_s

    def _summary(self) -> RunSummary:
        return RunSummary(
            steps=self.state.step,
            episodes=self.state.num_episodes,
            seed=self.config.ajet.seed,
            wall_seconds=self._seconds(),
            peak_rss_bytes=peak_rss_bytes(),
            success_before=self.state.success("before"),
            success_after=self.state.success("after"),
            num_held_out=len(self.held_out),
            timelines=self.state.timelines.report(),
            extra={"held_out": self.state.held_out},
        )
