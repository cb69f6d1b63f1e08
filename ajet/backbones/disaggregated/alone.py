"""Modes train and explore, in this process: a learner without an engine, an engine without a
learner.

    train     learner ── safetensors ──> run folder/weights ──> engine     explore
                 └──────────< buffer.sqlite <── groups ─────────────┘

Not covered: what they tell each other (apart.py), a cluster (alone_on_ray.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console

from ajet.backbones.disaggregated.apart import ExploreApart, TrainApart
from ajet.core import assembly
from ajet.core.bounded_loop import run_bounded
from ajet.core.config import AjetConfig
from ajet.core.interrupt import Interrupt
from ajet.core.learning.checkpoints import LearnerCheckpoints
from ajet.core.learning.learner import Learner, Lesson
from ajet.core.record.books import Books, find_start
from ajet.core.record.recorded_run import template_of
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.summary import RunSummary
from ajet.core.rollout.batch import GroupRunner
from ajet.core.task.run_tasks import RunTasks
from ajet.core.trajectory.trajectory import Group
from ajet.core.weight_sync.folder import FolderSource, WeightFolder


class LearnerSeat:
    """A learner that leaves its weights in a folder."""

    def __init__(self, learner: Learner, folder: WeightFolder) -> None:
        self.learner, self._folder = learner, folder
        self.source: FolderSource

    async def learn(self, step: int, groups: Sequence[Group]) -> tuple[Lesson, dict[str, float]]:
        lesson = self.learner.estimate(self.learner.credit(groups))
        return lesson, self.learner.update(step, lesson)

    async def publish(self, version: int) -> Mapping[str, float]:
        self.source = self._folder.write(version, self.learner.policy.weights())
        return {}


class TrainHere:
    """One sitting of the trainer."""

    def __init__(
        self, config: AjetConfig, folder: RunFolder, interrupt: Interrupt, console: Console
    ) -> None:
        self.folder = folder
        tasks = RunTasks.read(config)
        assembly.set_threads(config)
        loaded = assembly.load_policy_model(config)
        template = assembly.make_template(loaded)
        weights = assembly.make_weight_folder(folder.weights, loaded)
        self.seat = LearnerSeat(assembly.make_learner(config, loaded), weights)
        keep = config.ajet.trainer_common.max_checkpoints_to_keep
        self.checkpoints = LearnerCheckpoints(self.seat.learner, loaded, keep=keep)
        start = find_start(folder, config.ajet.trainer_common.resume)
        if start is not None:
            self.checkpoints.load(start.path)
        self.books = Books(
            config,
            folder,
            tasks,
            save=self._save,
            interrupt=interrupt,
            console=console,
            start=start,
        )
        template.today = datetime.fromisoformat(self.books.state.begun)
        self.books.keep_inputs(loaded.tokenizer, template)
        self.half = TrainApart(self.books, self.seat, start)

    def run(self) -> RunSummary:
        """All steps that are left; the summary is written last."""
        with self.books:
            run_bounded(self.half.run())
        return self.books.finish()

    async def _save(self, step: int, run: dict[str, Any]) -> None:
        self.checkpoints.save(self.folder.checkpoints, step, self.half.with_own_state(run))
        self.half.saved()


class ExploreHere:
    """The explorer, over an engine of its own."""

    def __init__(self, config: AjetConfig, folder: RunFolder, interrupt: Interrupt) -> None:
        self.config, self.folder = config, folder
        assembly.set_threads(config)
        self.replica = assembly.make_replica(config, "engine")
        self.gateway = assembly.make_gateway(config)
        self.half = ExploreApart(
            config, folder, interrupt, make_runner=self._runner, load=self._load
        )

    def run(self) -> None:
        """Until the run needs no more groups."""
        run_bounded(self._run())

    async def _run(self) -> None:
        try:
            await self.half.run()
        finally:
            self.gateway.close()
            await self.replica.close()

    async def _runner(self) -> GroupRunner:
        return assembly.make_runner(
            self.config,
            self.replica,
            template_of(self.folder),
            judge=assembly.make_judge(self.config),
            mode="train",
            gateway=self.gateway,
        )

    async def _load(self, source: FolderSource) -> object:
        return await self.replica.load_weights(source, source.version)
