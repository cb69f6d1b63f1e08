"""Modes train and explore on a cluster: ranks without engines, engines and workers without ranks.

Not covered: what the two tell each other (apart.py), one process (alone.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from rich.console import Console

from ajet.backbones.disaggregated.apart import ExploreApart, TrainApart
from ajet.cluster.crew import keep_words
from ajet.cluster.engine_replica import Engines, RouterEndpoint
from ajet.cluster.placement import Placement
from ajet.cluster.rollout_worker import Words
from ajet.cluster.rollout_workers import RolloutWorkers
from ajet.cluster.sittings import ProcessOptions
from ajet.cluster.trainer_group import Taught, TrainerGroup
from ajet.cluster.training_sitting import TrainingSitting
from ajet.cluster.weights_place import sync_method, weights_place
from ajet.core.bounded_loop import run_bounded
from ajet.core.config import AjetConfig
from ajet.core.inference.serving import EngineName, ServerStart, engine_name
from ajet.core.interrupt import Interrupt
from ajet.core.record.books import find_start
from ajet.core.record.origin import RunOrigin
from ajet.core.record.recorded_run import template_of
from ajet.core.record.run_folder import RunFolder
from ajet.core.rollout.batch import GroupRunner
from ajet.core.trajectory.trajectory import Group
from ajet.core.weight_sync.folder import FolderSource


class RanksSeat:
    """Ranks that leave their weights in the run folder."""

    def __init__(self, trainer: TrainerGroup) -> None:
        self._trainer = trainer
        self.source: FolderSource

    async def learn(self, step: int, groups: Sequence[Group]) -> tuple[Taught, dict[str, float]]:
        return await self._trainer.learn(step, groups)

    async def publish(self, version: int) -> Mapping[str, float]:
        source = await self._trainer.publish(version)
        assert isinstance(source, FolderSource)
        self.source = source
        return {}


class TrainOnRay(TrainingSitting):
    """One sitting of the trainer."""

    def place(self, placement: Placement, options: ProcessOptions) -> None:
        _, notice = sync_method(self.config, placement)
        root = weights_place(self.folder.path, in_memory=False, notice=notice)
        ranks = [options(each) for each in placement.trainer]
        self.trainer = TrainerGroup(self.config, ranks, root)

    async def start(self) -> None:
        model = await self.trainer.start()
        start = find_start(self.folder, self.config.ajet.trainer_common.resume)
        if start is not None:
            await self.trainer.load(start.path)
        self.open_books(self._save, start)
        self.trainer.on_progress = self.books.progress.fraction
        keep_words(model, self.books)
        self.half = TrainApart(self.books, RanksSeat(self.trainer), start)

    async def work(self) -> None:
        await self.half.run()

    def close(self) -> None:
        self.trainer.close()

    async def _save(self, step: int, run: dict[str, Any]) -> None:
        await self.trainer.save(self.folder.checkpoints, step, self.half.with_own_state(run))
        self.half.saved()


class LoadingEngines(Protocol):
    """What is asked of `Engines` here."""

    async def start(self, server: ServerStart | None = None) -> None: ...
    async def load(self, source: FolderSource) -> object: ...


class ExplorersEngines:
    """In-process engines are there at once; servers begin with what the trainer publishes first,
    which nobody asks before."""

    def __init__(
        self, engines: LoadingEngines, config: AjetConfig, folder: RunFolder, *, on_gpu: bool
    ) -> None:
        self._engines, self._folder, self._on_gpu = engines, folder, on_gpu
        self._engine: EngineName = engine_name(config, on_gpu=on_gpu)
        self._is_up = False

    async def start(self) -> None:
        """What can start without weights."""
        if self._engine == "in_process":
            await self._engines.start()
            self._is_up = True

    async def load(self, source: FolderSource) -> object:
        """Engines that are there, with these weights."""
        engine = self._engine
        if engine != "in_process" and not self._is_up:
            ends = tuple(RunOrigin.read(self._folder.origin_json).stop_token_ids)
            await self._engines.start(ServerStart(engine, self._on_gpu, source, ends))
            self._is_up = True
        return await self._engines.load(source)


class ExploreOnRay:
    """The explorer: engines behind a router, and workers."""

    def __init__(
        self,
        config: AjetConfig,
        folder: RunFolder,
        interrupt: Interrupt,
        console: Console,
        placement: Placement,
        options: ProcessOptions,
    ) -> None:
        self.folder = folder
        self.workers = RolloutWorkers(config, [options(each) for each in placement.workers])
        self.engines = Engines(config, [options(each) for each in placement.engines])
        self.serving = ExplorersEngines(self.engines, config, folder, on_gpu=placement.on_gpus)
        self.half = ExploreApart(
            config, folder, interrupt, make_runner=self._runner, load=self.serving.load
        )

    def run(self) -> None:
        """Until the run needs no more groups."""
        run_bounded(self._run())

    async def _run(self) -> None:
        try:
            await self.workers.check()
            await self.serving.start()
            await self.engines.attended(self.half.run())
        finally:
            self.workers.close()
            self.engines.close()

    async def _runner(self) -> GroupRunner:
        origin = RunOrigin.read(self.folder.origin_json)
        words = Words(
            template_of(self.folder).tokenizer,
            tuple(origin.stop_token_ids),
            datetime.fromisoformat(origin.begun),
        )
        await self.workers.start(partial(RouterEndpoint, self.engines.router), words)
        return self.workers
