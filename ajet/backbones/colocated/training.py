"""One run on a cluster whose trainer and engines share their devices: they take turns.

    each step: tasks -> episodes (workers, engines) -> engines sleep -> credit -> advantages
               -> update (ranks) -> engines wake with the new weights -> record

With one seed it is the run of backbone debug: the same episodes, and losses as near as roundings of
other batches allow. Not covered: training while episodes run (backbone trinity).
"""

from rich.console import Console

from ajet.cluster.crew import Crew
from ajet.cluster.placement import Placement
from ajet.cluster.sittings import ProcessOptions
from ajet.core.bounded_loop import run_bounded
from ajet.core.config import AjetConfig
from ajet.core.errors import RunFailed
from ajet.core.interrupt import Interrupt
from ajet.core.record.books import Books
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.summary import RunSummary
from ajet.core.record.validation import Validation
from ajet.core.task.run_tasks import RunTasks


class Training:
    """One sitting of one run. Its processes are gone when `run` returns."""

    def __init__(
        self,
        config: AjetConfig,
        folder: RunFolder,
        interrupt: Interrupt,
        console: Console,
        placement: Placement,
        options: ProcessOptions,
    ) -> None:
        self.config, self.folder, self.interrupt = config, folder, interrupt
        self.console = console
        self.tasks = RunTasks.read(config)
        self.crew = Crew(config, folder, placement, options)

    def run(self) -> RunSummary:
        """All steps that are left; the summary is written last."""
        return run_bounded(self._run())

    async def _run(self) -> RunSummary:
        try:
            await self._start()
            with self.books:
                await self.crew.attended(self._train())
        finally:
            self.crew.close()
        return self.books.finish()

    async def _start(self) -> None:
        start = await self.crew.start()
        self.books = Books(
            self.config,
            self.folder,
            self.tasks,
            save=self.crew.save,
            interrupt=self.interrupt,
            console=self.console,
            start=start,
        )
        await self.crew.admit(self.books)
        source = await self.crew.trainer.publish(self.books.state.step)
        await self.crew.engines.wake(source)
        self.validation = Validation(self.crew.workers, self.books)
        self.batch = self.books.batch_rollout(self.crew.runner)

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

    async def _train_step(self, step: int) -> None:
        """The algorithm."""
        rollout = await self.batch.groups_of(step)
        self.books.rolled_out(step, rollout)
        await self.crew.engines.sleep()
        lesson, learnt = await self.crew.trainer.learn(step, rollout.groups)
        sync = await self.crew.engines.wake(await self.crew.trainer.publish(step))
        metrics = {"sync/seconds": sync.seconds, "sync/bytes": float(sync.num_bytes)}
        self.books.record(step, rollout, lesson, learnt | metrics)
