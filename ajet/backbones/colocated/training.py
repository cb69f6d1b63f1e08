"""One run on a cluster whose trainer and engines share their devices: they take turns.

    each step: tasks -> episodes (workers, engines) -> engines sleep -> credit -> advantages
               -> update (ranks) -> engines wake with the new weights -> record

With one seed it is the run of backbone debug: the same episodes, and losses as near as roundings of
other batches allow. Not covered: training while episodes run (backbone trinity).
"""

from ajet.cluster.crew import Crew
from ajet.cluster.placement import Placement
from ajet.cluster.sittings import ProcessOptions
from ajet.cluster.training_sitting import TrainingSitting
from ajet.core.errors import RunFailed
from ajet.core.record.validation import Validation


class Training(TrainingSitting):
    """One sitting of one run."""

    def place(self, placement: Placement, options: ProcessOptions) -> None:
        self.crew = Crew(self.config, self.folder, placement, options)

    async def start(self) -> None:
        start = await self.crew.start()
        self.open_books(self.crew.save, start)
        self.crew.trainer.on_progress = self.books.progress.fraction
        await self.crew.admit(self.books)
        source = await self.crew.trainer.publish(self.books.state.step)
        await self.crew.engines.wake(source)
        self.validation = Validation(self.crew.workers, self.books)
        self.batch = self.books.batch_rollout(self.crew.runner)

    async def work(self) -> None:
        await self.crew.engines.attended(self._train())

    def close(self) -> None:
        self.crew.close()

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
