"""Backbone trinity without Ray, for tests of its loops: explorer and trainer in one process, or
each in a process of its own.

    fit_in_one_process(config)     with a staleness bound of 0 the two take turns, and episodes,
                                   losses and weights are those of backbone debug, bit for bit

The loops are those of ajet/backbones/disaggregated; who trains and who samples is written here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ajet import assembly
from ajet.backbones.disaggregated.async_run import AsyncRun
from ajet.backbones.disaggregated.split_run import ExplorerCommand, TrainerCommand
from ajet.backbones.local_training import LocalTraining
from ajet.core.config import AjetConfig
from ajet.core.inference.endpoint import ModelEndpoint
from ajet.core.judge import make_judge
from ajet.core.learning.adapter_learners import AdapterLearners
from ajet.core.learning.learner import Learner, TrainBatch
from ajet.core.model.save import model_files
from ajet.core.process.bounded_loop import run_bounded
from ajet.core.process.interrupt import Interrupt, catch_interrupts
from ajet.core.record.run_folder import EXPLORER_LOCK, RunFolder
from ajet.core.record.run_log import run_log
from ajet.core.record.summary import RunSummary
from ajet.core.rollout.group import GroupRunner
from ajet.core.run.run_tasks import RunTasks
from ajet.core.run.start import open_run
from ajet.core.text.terminal import Console
from ajet.core.trajectory.trajectory import Group
from ajet.core.weight_sync.folder import FolderSource, WeightFolder
from ajet.core.weight_sync.load import LiveSource
from ajet.engines.in_process import InProcessEngine
from ajet.engines.in_process_replica import InProcessReplica
from ajet.read.recorded_run import load_template
from ajet.serve.exchange.gateway import ExchangeGateway


def fit_in_one_process(
    config: AjetConfig,
    console: Console | None = None,
    *,
    interrupt: Interrupt | None = None,
    gateway: ExchangeGateway | None = None,
) -> RunSummary | None:
    """Does what the config's mode says, in this process."""
    console, mode = console or Console(), config.trinity.mode
    if mode == "explore":
        with (
            RunFolder.open(config.run_folder, EXPLORER_LOCK) as folder,
            run_log(folder.logs / "explore.log"),
            catch_interrupts(interrupt) as interrupt,
        ):
            ExplorerProcess(config, folder, interrupt, console, gateway).fit()
        return None
    tasks = assembly.read_tasks(config)
    training = TrainerProcess if mode == "train" else OneProcessTraining
    with open_run(config, tasks) as folder, catch_interrupts(interrupt) as interrupt:
        return training(config, tasks, folder, interrupt, console).fit()


class SharedTrainerClient:
    """A learner whose engine samples with the same weights that it updates."""

    def __init__(self, learner: Learner | AdapterLearners, engine: InProcessEngine) -> None:
        self.learner, self._engine = learner, engine
        self.endpoint: ModelEndpoint = engine
        self.on_progress: Callable[[float], None] = lambda fraction: None

    async def train(
        self, step: int, groups: Sequence[Group]
    ) -> tuple[TrainBatch, dict[str, float]]:
        return train(self.learner, step, groups, self.on_progress)

    async def publish(self, version: int) -> Mapping[str, float]:
        self._engine.publish(version)
        return {}

    async def empty_cache(self) -> None:
        """Forgets every cached prefix."""
        self._engine.publish(self._engine.policy_version)

    async def close(self) -> None:
        await self._engine.close()


class ReplicaTrainerClient:
    """A learner, and a replica that samples with weights of its own during updates. Its methods do
    what those of `SharedTrainerClient` do."""

    def __init__(self, learner: Learner | AdapterLearners, replica: InProcessReplica) -> None:
        self.learner, self._replica = learner, replica
        self.endpoint: ModelEndpoint = replica
        self.on_progress: Callable[[float], None] = lambda fraction: None

    async def train(
        self, step: int, groups: Sequence[Group]
    ) -> tuple[TrainBatch, dict[str, float]]:
        return await asyncio.to_thread(train, self.learner, step, groups, self.on_progress)

    async def publish(self, version: int) -> Mapping[str, float]:
        started_s = time.monotonic()
        await self._replica.load_weights(LiveSource(version, self.learner.weights), version)
        return {"sync/seconds": time.monotonic() - started_s}

    async def empty_cache(self) -> None:
        await self._replica.empty_cache()

    async def close(self) -> None:
        await self._replica.close()


def train(
    learner: Learner | AdapterLearners,
    step: int,
    groups: Sequence[Group],
    on_progress: Callable[[float], None] | None = None,
) -> tuple[TrainBatch, dict[str, float]]:
    """Computes one update; returns its batch and its metrics."""
    batch = learner.make_batch(groups)
    return batch, learner.update(step, batch, on_progress=on_progress)


class OneProcessTraining(LocalTraining):
    """One attempt of a run of explorer and trainer in this process."""

    def __init__(
        self,
        config: AjetConfig,
        tasks: RunTasks,
        folder: RunFolder,
        interrupt: Interrupt,
        console: Console,
    ) -> None:
        super().__init__(config, tasks, folder, interrupt, console)
        self.client = self._make_client()
        self.gateway = assembly.make_gateway(config)
        shared = {"judge": make_judge(config), "gateway": self.gateway}
        endpoint, template = self.client.endpoint, self.template
        runner = assembly.make_runner(config, endpoint, template, **shared)
        # Validation has slots of its own: groups of training may run meanwhile.
        self.validator = assembly.make_runner(config, endpoint, template, **shared)
        resume_point = self.begin_run(self.client.learner)
        self.client.on_progress = self.run.progress.fraction
        self.async_run = AsyncRun(
            self.run,
            self.client,
            runner=runner,
            validate=self._validate_if_due,
            resume_point=resume_point,
        )

    def _make_client(self) -> SharedTrainerClient | ReplicaTrainerClient:
        learner = assembly.make_learner(self.config, self.loaded)
        if self.config.max_staleness == 0:
            engine = assembly.make_engine(self.config, self.loaded, self.template)
            return SharedTrainerClient(learner, engine)
        return ReplicaTrainerClient(learner, assembly.make_replica(self.config, "engine"))

    async def train(self) -> None:
        try:
            await self.async_run.train()
        finally:
            self.gateway.close()
            await self.client.close()

    async def save(self, step: int, run: dict[str, Any], copies: bool) -> Awaitable[object]:
        run = self.async_run.with_explorer_state(run)
        write = self.checkpoints.prepare(self.folder.checkpoints, step, run, copies=copies)
        return asyncio.to_thread(write)

    async def _validate_if_due(self) -> None:
        """Validates if it is due, and drops what the engine cached of it, as backbone debug
        does."""
        if await self.run.validate_if_due(self.validator, self._cross_entropy):
            await self.client.empty_cache()

    async def _cross_entropy(self, groups: Sequence[Group]) -> float:
        return self.client.learner.cross_entropy(groups)


class TrainerProcess(LocalTraining):
    """One attempt of the trainer, in this process."""

    def __init__(
        self,
        config: AjetConfig,
        tasks: RunTasks,
        folder: RunFolder,
        interrupt: Interrupt,
        console: Console,
    ) -> None:
        super().__init__(config, tasks, folder, interrupt, console)
        self.weights = WeightFolder.for_model(folder.weights, model_files(self.loaded))
        self.learner = assembly.make_learner(config, self.loaded)
        resume_point = self.begin_run(self.learner)
        self.command = TrainerCommand(self.run, self._train, self._write, resume_point)

    async def train(self) -> None:
        await self.command.train()

    async def save(self, step: int, run: dict[str, Any], copies: bool) -> Awaitable[object]:
        run = self.command.with_explorer_state(run)
        write = self.checkpoints.prepare(self.folder.checkpoints, step, run, copies=copies)
        return asyncio.to_thread(write)

    async def _train(
        self, step: int, groups: Sequence[Group]
    ) -> tuple[TrainBatch, dict[str, float]]:
        return train(self.learner, step, groups)

    async def _write(self, version: int) -> FolderSource:
        return self.weights.write(version, self.learner.weights())


class ExplorerProcess:
    """The explorer, with an engine of its own in this process."""

    def __init__(
        self,
        config: AjetConfig,
        folder: RunFolder,
        interrupt: Interrupt,
        console: Console,
        gateway: ExchangeGateway | None = None,
    ) -> None:
        """With `gateway`, clients run the episodes."""
        self.config, self.folder = config, folder
        assembly.prepare_torch(config)
        self.replica = assembly.make_replica(config, "engine")
        self.gateway = gateway or assembly.make_gateway(config)
        self.workflows = None if gateway is None else gateway.workflows
        self.command = ExplorerCommand(
            config,
            folder,
            interrupt,
            make_runner=self._runner,
            load=self._load,
            say=partial(console.print, markup=False, highlight=False, soft_wrap=True),
            gateway=gateway,
        )

    def fit(self) -> None:
        """Runs groups until the trainer needs no more."""
        run_bounded(self._explore())

    async def _explore(self) -> None:
        try:
            await self.command.explore()
        finally:
            self.gateway.close()
            await self.replica.close()

    async def _runner(self) -> GroupRunner:
        return assembly.make_runner(
            self.config,
            self.replica,
            load_template(self.folder),
            judge=make_judge(self.config),
            gateway=self.gateway,
            workflows=self.workflows,
        )

    async def _load(self, source: FolderSource) -> object:
        return await self.replica.load_weights(source, source.version)
