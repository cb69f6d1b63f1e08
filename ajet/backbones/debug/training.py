"""Trains in one process; the engine shares the policy's weights or is one server (sampling.py).
Nothing depends on timing (waves in the engine, seeds derived from paths), so a run that is killed
and resumed ends with the weights of an uninterrupted one, bit for bit, unless clients run the
episodes (ajet/serve/exchange): those are journaled before a client is told that they count.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ajet import assembly
from ajet.backbones.debug.sampling import chosen_engine, make_sampling
from ajet.backbones.local_training import LocalTraining
from ajet.core.buffer.journal import Journal
from ajet.core.config import AjetConfig
from ajet.core.judge import make_judge
from ajet.core.process.interrupt import Interrupt, catch_interrupts
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.summary import RunSummary
from ajet.core.rollout.request import step_of_group
from ajet.core.run.run_tasks import RunTasks
from ajet.core.run.start import open_run
from ajet.core.text.terminal import Console
from ajet.core.trajectory.trajectory import Group
from ajet.serve.exchange.gateway import ExchangeGateway


def fit_debug(
    config: AjetConfig,
    console: Console | None = None,
    *,
    interrupt: Interrupt | None = None,
    gateway: ExchangeGateway | None = None,
) -> RunSummary:
    """Trains to the last step in this process, from the newest checkpoint if there is one. With
    `gateway`, clients run the episodes."""
    tasks = assembly.read_tasks(config)
    with open_run(config, tasks) as folder, catch_interrupts(interrupt) as interrupt:
        return DebugTraining(config, tasks, folder, interrupt, console or Console(), gateway).fit()


class DebugTraining(LocalTraining):
    """One attempt of a run of backbone debug. With `gateway`, clients run the episodes."""

    def __init__(
        self,
        config: AjetConfig,
        tasks: RunTasks,
        folder: RunFolder,
        interrupt: Interrupt,
        console: Console,
        gateway: ExchangeGateway | None = None,
    ) -> None:
        engine = chosen_engine(config)
        super().__init__(config, tasks, folder, interrupt, console)
        loaded, template = self.loaded, self.template
        self.learner = assembly.make_learner(config, loaded)
        self.sampling = make_sampling(config, folder, engine, loaded, self.learner, template)
        self._is_served = gateway is not None
        self.gateway = gateway or assembly.make_gateway(config)
        runner = self.validator = assembly.make_runner(
            config,
            self.sampling.endpoint,
            template,
            judge=make_judge(config),
            gateway=self.gateway,
            workflows=tasks.workflows if gateway is None else gateway.workflows,
        )
        self.begin_run(self.learner)
        self.journal: Journal | None = None
        if gateway is not None:
            self.journal = Journal.resumed(
                folder.finished_db, config, self.user_files, self.run.state.step
            )
            gateway.exchange.rewind(self.run.state.step)
            self.run.on_step = gateway.exchange.step_trained
            self.run.stopping_note = gateway.exchange.stopping_note
            runner = gateway.acknowledging(runner, self.journal)
            self.validator = gateway.acknowledging(self.validator, None)
        self.batches = self.run.batches(runner)

    async def train(self) -> None:
        try:
            async with self.run.saved_at_end():
                await self.sampling.start(self.run.state.step)
                await self._validate_if_due()
                for step in self.run.steps_left():
                    await self._train_step(step)
                    await self._validate_if_due()
                    await self.run.save_if_due()
        finally:
            if not self._is_served:  # else `ajet serve` closes it
                self.gateway.close()
            await self.sampling.close()
            if self.journal is not None:
                self.journal.close()

    async def _validate_if_due(self) -> None:
        async def cross_entropy(groups: Sequence[Group]) -> float:
            return self.learner.cross_entropy(groups)

        if await self.run.validate_if_due(self.validator, cross_entropy):
            # A cached prefix rounds differently from a computed one. Without this a run's weights
            # would depend on whether it validated, or was resumed after a validation.
            await self.sampling.empty_cache()

    async def _train_step(self, step: int) -> None:
        rollout = await self.batches.rollout_step(step)
        self.run.rollout_done(step, rollout)
        await self.sampling.sleep()
        batch = self.learner.make_batch(rollout.groups)
        metrics = self.learner.update(step, batch, on_progress=self.run.progress.fraction)
        metrics |= await self.sampling.publish(step)
        self.run.record_step(step, rollout, batch, metrics)

    async def save(self, step: int, run: dict[str, Any], copies: bool) -> Awaitable[object]:
        write = self.checkpoints.prepare(self.folder.checkpoints, step, run, copies=copies)
        return self._complete(write, step)

    async def _complete(self, write: Callable[[], object], step: int) -> None:
        await asyncio.to_thread(write)
        if self.journal is not None:
            saved = self.journal.groups_except(lambda group_id: step_of_group(group_id) > step)
            self.journal.remove(saved)
