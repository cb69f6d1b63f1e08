"""Modes train and explore in one process each: a learner without an engine, an engine without a
learner.

    train     learner ── safetensors ──> run folder/weights ──> engine     explore
                 └──────────< buffer.sqlite <── groups ─────────────┘

Not covered: the notes that they exchange (split_run.py), a cluster (separate_process_on_ray.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ajet import assembly
from ajet.backbones.disaggregated.split_run import ExplorerCommand, TrainerCommand
from ajet.backbones.local_training import LocalTraining
from ajet.core.bounded_loop import run_bounded
from ajet.core.config import AjetConfig
from ajet.core.interrupt import Interrupt
from ajet.core.judge import make_judge
from ajet.core.learning.learner import TrainBatch
from ajet.core.model.save import model_files
from ajet.core.record.recorded_run import load_template
from ajet.core.record.run_folder import RunFolder
from ajet.core.rollout.group import GroupRunner
from ajet.core.run.run_tasks import RunTasks
from ajet.core.terminal import Console
from ajet.core.trajectory.trajectory import Group
from ajet.core.weight_sync.folder import FolderSource, WeightFolder
from ajet.exchange.gateway import ExchangeGateway


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
        self.weights = WeightFolder.of_model(folder.weights, model_files(self.loaded))
        self.learner = assembly.make_learner(config, self.loaded)
        resume_point = self.begin_run(self.learner)
        self.command = TrainerCommand(self.run, self._train, self._write, resume_point)

    async def train(self) -> None:
        await self.command.train()

    async def save(self, step: int, run: dict[str, Any]) -> None:
        self.checkpoints.save(self.folder.checkpoints, step, self.command.with_explorer_state(run))
        self.command.on_checkpoint()

    async def _train(
        self, step: int, groups: Sequence[Group]
    ) -> tuple[TrainBatch, dict[str, float]]:
        batch = self.learner.make_batch(self.learner.score(groups))
        return batch, self.learner.update(step, batch)

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
