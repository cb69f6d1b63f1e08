"""A run on a cluster whose trainer and engines take turns on the same devices. With the same seed
it has the episodes of backbone debug, and the same losses up to the rounding of differently
composed batches.
"""

from functools import partial

from ajet import assembly
from ajet.cluster.connection import SessionSettings
from ajet.cluster.placement import Placement
from ajet.cluster.run_attempts import ProcessOptions, TrainingAttempt, run_on_ray
from ajet.cluster.run_processes import RunProcesses
from ajet.core.config import AjetConfig
from ajet.core.process.interrupt import Interrupt
from ajet.core.record.summary import RunSummary
from ajet.core.run.start import open_run
from ajet.core.text.terminal import Console
from ajet.serve.exchange.gateway import ExchangeGateway


def fit_colocated(
    config: AjetConfig,
    *,
    session: SessionSettings,
    interrupt: Interrupt | None = None,
    gateway: ExchangeGateway | None = None,
) -> RunSummary | None:
    """Trains to the last step on Ray (`--backbone verl`), from the newest checkpoint if there is
    one. With `gateway`, clients run the episodes."""
    tasks = assembly.read_tasks(config)
    with open_run(config, tasks) as folder:
        make = partial(ColocatedTraining, tasks=tasks, gateway=gateway)
        return run_on_ray(make, session, config, folder, Console(), interrupt)


class ColocatedTraining(TrainingAttempt):
    """One attempt of a run of backbone verl."""

    def make_processes(self, placement: Placement, options: ProcessOptions) -> None:
        self.processes = RunProcesses(self.config, self.folder, placement, options, self.gateway)

    async def start(self) -> None:
        resume_point = await self.processes.start()
        self.begin_run(self.processes.save, resume_point)
        self.trainer, self.engines = self.processes.trainer, self.processes.engines
        self.trainer.on_progress = self.run.progress.fraction
        await self.processes.begin(self.run)
        await self.engines.wake(await self.trainer.publish(self.run.state.step))
        self.batches = self.run.batches(self.processes.runner)

    async def train(self) -> None:
        await self.engines.supervised(self._train())

    def close(self) -> None:
        self.processes.close()

    async def _train(self) -> None:
        async with self.run.saved_at_end():
            await self.processes.validate_if_due(self.run)
            for step in self.run.steps_left():
                await self._train_step(step)
                await self.processes.validate_if_due(self.run)
                await self.run.save_if_due()

    async def _train_step(self, step: int) -> None:
        rollout = await self.batches.rollout_step(step)
        self.run.rollout_done(step, rollout)
        await self.engines.sleep()
        update, metrics = await self.trainer.train(step, rollout.groups)
        sync = await self.engines.wake(await self.trainer.publish(step))
        metrics |= {"sync/seconds": sync.seconds, "sync/bytes": float(sync.num_bytes)}
        self.run.record_step(step, rollout, update, metrics)
