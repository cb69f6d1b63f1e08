"""One run in one process: the engine shares the policy's weights.

    each step: tasks -> episodes -> judge -> credit -> advantages -> update -> publish -> record

Nothing here depends on timing (the engine works in waves, seeds are paths), so a run that is killed
at any moment and resumed from its last checkpoint ends with the weights of an uninterrupted one,
bit for bit.

Not covered: several processes or devices.
"""

from datetime import datetime
from typing import Any

from rich.console import Console

from ajet.core import assembly
from ajet.core.bounded_loop import run_bounded
from ajet.core.config import AjetConfig
from ajet.core.errors import RunFailed
from ajet.core.interrupt import Interrupt
from ajet.core.learning.checkpoints import LearnerCheckpoints
from ajet.core.record.books import Books, find_start
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.summary import RunSummary
from ajet.core.record.validation import Validation
from ajet.core.task.run_tasks import RunTasks


class Training:
    """One sitting of one run: everything that is alive between its first step and its last."""

    def __init__(
        self, config: AjetConfig, folder: RunFolder, interrupt: Interrupt, console: Console
    ) -> None:
        self.config, self.folder, self.interrupt = config, folder, interrupt
        tasks = RunTasks.read(config)
        assembly.set_threads(config)
        loaded = assembly.load_policy_model(config)
        template = assembly.make_template(loaded)
        self.learner = assembly.make_learner(config, loaded)
        self.engine = assembly.make_engine(config, loaded, template)
        judge = assembly.make_judge(config)
        self.gateway = assembly.make_gateway(config)
        shared = {"judge": judge, "gateway": self.gateway}
        self.runner = assembly.make_runner(config, self.engine, template, mode="train", **shared)
        validator = assembly.make_runner(config, self.engine, template, mode="eval", **shared)
        keep = config.ajet.trainer_common.max_checkpoints_to_keep
        self.checkpoints = LearnerCheckpoints(self.learner, loaded, keep=keep)
        start = find_start(folder, config.ajet.trainer_common.resume)
        if start is not None:
            self.checkpoints.load(start.path)
            self.engine.publish(start.step)
        self.books = Books(
            config,
            folder,
            tasks,
            save=self._save,
            interrupt=interrupt,
            console=console,
            start=start,
        )
        template.today = datetime.fromisoformat(self.books.state.begun)
        self.books.keep_inputs(loaded.tokenizer, template)
        self.validation = Validation(validator, self.books)
        self.batch = self.books.batch_rollout(self.runner)

    def run(self) -> RunSummary:
        """All steps that are left; the summary is written last."""
        with self.books:
            run_bounded(self._train())
        return self.books.finish()

    async def _train(self) -> None:
        try:
            await self.validation.if_due()
            for step in self.books.steps_left():
                await self._train_step(step)
                await self.validation.if_due()
                await self.books.save_if_due()
            await self.books.save_if_new()
        except RunFailed:  # raised by a rollout: the policy is still that of the last whole step
            await self.books.save_if_new()
            raise
        finally:
            self.gateway.close()
            await self.engine.close()

    async def _train_step(self, step: int) -> None:
        """The algorithm."""
        rollout = await self.batch.groups_of(step)
        self.books.rolled_out(step, rollout)
        credited = self.learner.credit(rollout.groups)
        lesson = self.learner.estimate(credited)
        learnt = self.learner.update(step, lesson, on_progress=self.books.progress.fraction)
        self.engine.publish(step)
        self.books.record(step, rollout, lesson, learnt)

    async def _save(self, step: int, run: dict[str, Any]) -> None:
        self.checkpoints.save(self.folder.checkpoints, step, run)
