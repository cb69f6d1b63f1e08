"""A run on a cluster whose trainer and engines work at the same time, on separate devices.

    explorer: episodes (workers, router, engines) ──> buffer ──> trainer: update (ranks)
                                       ^                            │
                                       └────── weights, checked ────┘

The driver runs the loops of explorer and trainer and computes nothing itself. While weights are
loaded, requests are held; a running one is interrupted and continues from its tokens with the new
weights, and its completion has the oldest version among them. With mode `colocate` the two take
turns on shared devices, and the engines sleep during an update.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any

from ajet.backbones.disaggregated.async_run import AsyncRun, left_out_reason
from ajet.cluster.engines import Engines
from ajet.cluster.placement import Placement
from ajet.cluster.run_attempts import ProcessOptions, TrainingAttempt
from ajet.cluster.run_processes import RunProcesses
from ajet.cluster.trainer_group import RankUpdate, TrainerGroup
from ajet.core.trajectory.trajectory import Group
from ajet.core.weight_sync.manifest import WeightsError


class ClusterTrainerClient:
    """Trainer ranks that compute the updates, and engines that load the weights they publish."""

    def __init__(self, trainer: TrainerGroup, engines: Engines, *, engines_sleep: bool) -> None:
        """If `engines_sleep`, the engines free their memory during an update."""
        self._trainer, self._engines, self._engines_sleep = trainer, engines, engines_sleep

    async def train(
        self, step: int, groups: Sequence[Group]
    ) -> tuple[RankUpdate, dict[str, float]]:
        if self._engines_sleep:
            await self._engines.sleep()
        return await self._trainer.train(step, groups)

    async def publish(self, version: int) -> Mapping[str, float]:
        source = await self._trainer.publish(version)
        try:
            sync = await (self._engines.wake if self._engines_sleep else self._engines.load)(source)
        except WeightsError:
            await self._trainer.check()  # raises ProcessLost if a lost rank is the reason
            raise
        return {"sync/seconds": sync.seconds, "sync/bytes": float(sync.num_bytes)}


class DisaggregatedTraining(TrainingAttempt):
    """One attempt of a run of backbone trinity."""

    def make_processes(self, placement: Placement, options: ProcessOptions) -> None:
        self.processes = RunProcesses(self.config, self.folder, placement, options, self.gateway)
        takes_turns = self.config.trinity.mode == "colocate"
        trainer, engines = self.processes.trainer, self.processes.engines
        self.client = ClusterTrainerClient(trainer, engines, engines_sleep=takes_turns)

    async def start(self) -> None:
        resume_point = await self.processes.start()
        self.begin_run(self._save, resume_point)
        self.processes.trainer.on_progress = self.run.progress.fraction
        await self.processes.begin(self.run)
        self.async_run = AsyncRun(
            self.run,
            self.client,
            runner=self.processes.runner,
            validate=lambda: self.processes.validate_if_due(self.run),
            resume_point=resume_point,
        )
        if self.gateway is not None:
            buffer, versions = self.async_run.buffer, self.async_run.versions
            self.gateway.exchange.left_out_reason = partial(left_out_reason, buffer, versions)

    async def train(self) -> None:
        await self.processes.engines.supervised(self.async_run.train())

    def close(self) -> None:
        self.processes.close()

    async def _save(self, step: int, run: dict[str, Any], copies: bool) -> Awaitable[object]:
        run = self.async_run.with_explorer_state(run)
        is_open = self.async_run.explorer.is_open
        return await self.processes.save(step, run, copies, is_open=is_open)
