"""Runs of backbone trinity on a cluster: trainer and engines work at the same time.

explorer: episodes (workers, router, engines) ──> buffer ──> trainer: update (ranks)
                                   ^                            │
                                   └────── weights, checked ────┘
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from loguru import logger

from ajet.backbones.disaggregated.async_run import AsyncRun, left_out_reason
from ajet.backbones.disaggregated.split_run import ExplorerCommand, TrainerCommand
from ajet.cluster.engines import Engines
from ajet.cluster.placement import Placement
from ajet.cluster.rollout_worker import TokenizerSpec
from ajet.cluster.run_attempts import ProcessOptions, TrainingAttempt, while_nodes_last
from ajet.cluster.run_processes import RunProcesses, make_workers, save_inputs
from ajet.cluster.shared_images import SharedImages
from ajet.cluster.trainer_group import RankUpdate, TrainerGroup
from ajet.cluster.weight_store import shares_run_folder, sync_method
from ajet.core.config import AjetConfig
from ajet.core.process.bounded_loop import run_bounded
from ajet.core.process.interrupt import Interrupt
from ajet.core.record.run_folder import RunFolder, RunOrigin
from ajet.core.rollout.group import GroupRunner
from ajet.core.run.run_state import find_resume_point
from ajet.core.text.terminal import Console
from ajet.core.trajectory.trajectory import Group
from ajet.core.weight_sync.folder import FolderSource, WeightFolder
from ajet.core.weight_sync.manifest import WeightsError
from ajet.read.recorded_run import load_template
from ajet.serve.exchange.gateway import ExchangeGateway
from ajet.servers.serving import EngineName, ServerSpec, engine_name, planned_engine

BASE_VERSION = 0
"""The version under which the base model is published to servers of several adapters."""


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
    """One attempt of a run of backbone trinity. The driver runs the loops of explorer and trainer
    and computes nothing itself. While weights are loaded, requests are held; a running one is
    interrupted and continues from its tokens with the new weights, and its completion has the
    oldest version among them. With mode `colocate` the two take turns on shared devices."""

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


class TrainerOnRay(TrainingAttempt):
    """Mode train: ranks without engines. Explorer and trainer exchange notes (split_run.py)."""

    def make_processes(self, placement: Placement, options: ProcessOptions) -> None:
        _, notice = sync_method(self.config, placement)
        if notice is not None:
            logger.warning(notice)
        self.images = SharedImages.of(self.config, len(placement.nodes))
        # The folder is neither emptied nor removed: while no trainer runs, a lost engine is
        # replaced by one that loads the weights that the others have.
        self.trainer = TrainerGroup(
            self.config,
            [options(rank) for rank in placement.trainer],
            self.folder.weights,
            threads=[placement.threads_of(rank) for rank in placement.trainer],
            shares_folder=shares_run_folder(placement),
            images=self.images,
        )
        self._on_gpu = placement.on_gpus

    async def start(self) -> None:
        model = await self.trainer.start()
        has_servers = planned_engine(self.config, on_gpu=self._on_gpu) != "in_process"
        if self.config.has_several_adapters and has_servers:
            await self.trainer.write_model(BASE_VERSION)
        resume_point = find_resume_point(self.folder, self.config.ajet.trainer_common.resume)
        if resume_point is not None:
            await self.trainer.load(resume_point.path)
        self.begin_run(self._save, resume_point)
        self.trainer.on_progress = self.run.progress.fraction
        save_inputs(model, self.run, self.images)
        self.command = TrainerCommand(self.run, self.trainer.train, self._write, resume_point)

    async def train(self) -> None:
        await self.command.train()

    def close(self) -> None:
        self.trainer.close()

    async def _write(self, version: int) -> FolderSource:
        source = await self.trainer.publish(version)
        assert isinstance(source, FolderSource)
        return source

    async def _save(self, step: int, run: dict[str, Any], copies: bool) -> Awaitable[object]:
        run = self.command.with_explorer_state(run)
        return await self.trainer.save(self.folder.checkpoints, step, run, copies)


class ExplorerEngines:
    """Starts the explorer's engines: in-process engines at once, servers with the first weights
    that the trainer publishes (with several adapters: with their base, which it has written)."""

    def __init__(
        self, engines: Engines, config: AjetConfig, folder: RunFolder, *, on_gpu: bool
    ) -> None:
        self._engines, self._folder, self._on_gpu = engines, folder, on_gpu
        self._engine: EngineName = engine_name(config, on_gpu=on_gpu)
        self._has_base = config.has_several_adapters
        self._is_started = False

    async def start(self) -> None:
        """Starts in-process engines. Raises ConfigError if a machine lacks the server."""
        if self._engine == "in_process":
            await self._engines.start()
            self._is_started = True
        else:
            await self._engines.check(self._engine, self._on_gpu)

    async def load(self, source: FolderSource) -> object:
        """Loads these weights into the engines; starts servers first if they do not run yet."""
        engine = self._engine
        # The lock fails here if the trainer has removed the weights, before requests are held.
        with source.read_lock():
            if engine != "in_process" and not self._is_started:
                ends = tuple(RunOrigin.read(self._folder.origin_json).stop_token_ids)
                base = WeightFolder.path_of(self._folder.weights, BASE_VERSION)
                first = FolderSource(base, BASE_VERSION) if self._has_base else source
                await self._engines.start(ServerSpec(engine, self._on_gpu, first, ends))
                self._is_started = True
            return await self._engines.load(source)


class ExplorerOnRay:
    """Mode explore: engines behind a router, and workers, without ranks."""

    def __init__(
        self,
        config: AjetConfig,
        folder: RunFolder,
        interrupt: Interrupt,
        console: Console,
        placement: Placement,
        options: ProcessOptions,
        gateway: ExchangeGateway | None = None,
    ) -> None:
        """With `gateway`, clients run the episodes and there are no workers."""
        self.folder, self._placement = folder, placement
        self.images = SharedImages.of(config, len(placement.nodes))
        engine_options = [options(process) for process in placement.engines]
        self.engines = Engines(config, engine_options, self.images)
        self.workers = make_workers(config, placement, options, self.engines, gateway)
        self.explorer_engines = ExplorerEngines(
            self.engines, config, folder, on_gpu=placement.on_gpus
        )
        self.command = ExplorerCommand(
            config,
            folder,
            interrupt,
            make_runner=self._runner,
            load=self.explorer_engines.load,
            say=partial(console.print, markup=False, highlight=False, soft_wrap=True),
            gateway=gateway,
        )

    def fit(self) -> None:
        """Runs groups until the trainer needs no more."""
        run_bounded(self._explore())

    async def _explore(self) -> None:
        async def start_and_explore() -> None:
            await self.workers.check()
            await self.explorer_engines.start()
            await self.engines.supervised(self.command.explore())

        try:
            await while_nodes_last(self._placement, start_and_explore())
        finally:
            self.workers.close()
            self.engines.close()

    async def _runner(self) -> GroupRunner:
        origin = RunOrigin.read(self.folder.origin_json)
        spec = TokenizerSpec(
            load_template(self.folder).tokenizer,
            tuple(origin.stop_token_ids),
            datetime.fromisoformat(origin.begun),
            self.images,
        )
        return await self.workers.start(self.engines.endpoint_factory(), spec)
