"""One run on a cluster whose trainer and engines have devices of their own: they work at once.

    explorer: episodes (workers, router, engines) ──> buffer ──> trainer: update (ranks)
                                       ^                            │
                                       └────── weights, checked ────┘

The driver holds the two halves together and computes nothing itself. While weights are loaded,
requests are held; one that runs is ended and goes on from its tokens with the new weights, stamped
with its oldest version. With mode `colocate` the halves take turns on shared devices, and the
engines sleep during an update. Not covered: what an update is (core/learning), where processes are
(cluster/placement.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ajet.backbones.disaggregated.halves import Halves
from ajet.cluster.crew import Crew
from ajet.cluster.engine_replica import Engines
from ajet.cluster.placement import Placement
from ajet.cluster.sittings import ProcessOptions
from ajet.cluster.trainer_group import Taught, TrainerGroup
from ajet.cluster.training_sitting import TrainingSitting
from ajet.core.trajectory.trajectory import Group
from ajet.core.weight_sync.manifest import WeightsError


class ClusterSeat:
    """The ranks learn; the engines take what they publish."""

    def __init__(self, trainer: TrainerGroup, engines: Engines, *, sleeps: bool) -> None:
        """`sleeps`: the engines give their memory to the update."""
        self._trainer, self._engines, self._sleeps = trainer, engines, sleeps

    async def learn(self, step: int, groups: Sequence[Group]) -> tuple[Taught, dict[str, float]]:
        if self._sleeps:
            await self._engines.sleep()
        return await self._trainer.learn(step, groups)

    async def publish(self, version: int) -> Mapping[str, float]:
        source = await self._trainer.publish(version)
        try:
            sync = await (self._engines.wake if self._sleeps else self._engines.load)(source)
        except WeightsError:
            await self._trainer.check()  # a rank that is lost is the reason, and is said first
            raise
        return {"sync/seconds": sync.seconds, "sync/bytes": float(sync.num_bytes)}


class Training(TrainingSitting):
    """One sitting of one run."""

    def place(self, placement: Placement, options: ProcessOptions) -> None:
        self.crew = Crew(self.config, self.folder, placement, options)
        sleeps = self.config.trinity.mode == "colocate"
        self.seat = ClusterSeat(self.crew.trainer, self.crew.engines, sleeps=sleeps)

    async def start(self) -> None:
        start = await self.crew.start()
        self.open_books(self._save, start)
        self.crew.trainer.on_progress = self.books.progress.fraction
        await self.crew.admit(self.books)
        self.halves = Halves(
            self.books,
            self.seat,
            runner=self.crew.runner,
            validator=self.crew.workers,
            start=start,
        )

    async def work(self) -> None:
        await self.crew.engines.attended(self.halves.run())

    def close(self) -> None:
        self.crew.close()

    async def _save(self, step: int, run: dict[str, Any]) -> None:
        run = self.halves.with_own_state(run)
        await self.crew.save(step, run, is_open=self.halves.explorer.is_open)
        self.halves.saved()
