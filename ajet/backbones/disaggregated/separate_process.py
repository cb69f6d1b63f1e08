"""Modes train and explore in one process each: a learner without an engine, an engine without a
learner.

    train     learner ── safetensors ──> run folder/weights ──> engine     explore
                 └──────────< buffer.sqlite <── groups ─────────────┘

Not covered: the notes that they exchange (split_run.py), a cluster (separate_process_on_ray.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ajet import assembly
from ajet.backbones.disaggregated.split_run import ExplorerCommand, TrainerCommand
from ajet.backbones.local_training import LocalTraining
from ajet.core.bounded_loop import run_bounded
from ajet.core.config import AjetConfig
from ajet.core.interrupt import Interrupt
from ajet.core.judge import make_judge
from ajet.core.learning.adapter_learners import AdapterLearners
from ajet.core.learning.learner import Learner, TrainBatch
from ajet.core.model.save import model_files
from ajet.core.record.recorded_run import load_template
from ajet.core.record.run_folder import RunFolder
from ajet.core.rollout.group import GroupRunner
from ajet.core.run.run_tasks import RunTasks
from ajet.core.terminal import Console
from ajet.core.trajectory.trajectory import Group
from ajet.core.weight_sync.folder import FolderSource, WeightFolder
from ajet.exchange.gateway import ExchangeGateway


class FolderTrainerClient:
    """A learner that publishes its weights as files in a folder."""

    def __init__(self, learner: Learner | AdapterLearners, folder: WeightFolder) -> None:
        self.learner, self._folder = learner, folder
        self.published_weights: FolderSource

    async def train(
        self, step: int, groups: Sequence[Group]
    ) -> tuple[TrainBatch, dict[str, float]]:
        batch = self.learner.make_batch(self.learner.score(groups))
        return batch, self.learner.update(step, batch)

    async def publish(self, version: int) -> Mapping[str, float]:
        self.published_weights = self._folder.write(version, self.learner.weights())
        return {}


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
        weights = WeightFolder.of_model(folder.weights, model_files(self.loaded))
        self.client = FolderTrainerClient(assembly.make_learner(config, self.loaded), weights)
        resume_point = self.begin_run(self.client.learner)
        self.command = TrainerCommand(self.run, self.client, resume_point)

    async def train(self) -> None:
        await self.command.train()

    async def save(self, step: int, run: dict[str, Any]) -> None:
        self.checkpoints.save(self.folder.checkpoints, step, self.command.with_explorer_state(run))
        self.command.on_checkpoint()


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
        assembly.set_threads(config)
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
