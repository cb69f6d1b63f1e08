"""Explorer and trainer in this process, for a laptop and for reading.

With a staleness bound of 0 they take turns, and episodes, losses and weights are those of backbone
debug, bit for bit. Not covered: a cluster (training.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ajet import assembly
from ajet.backbones.disaggregated.async_run import AsyncRun
from ajet.backbones.disaggregated.trainer_clients import make_trainer_client
from ajet.backbones.local_training import LocalTraining
from ajet.core.config import AjetConfig
from ajet.core.interrupt import Interrupt
from ajet.core.judge import make_judge
from ajet.core.record.run_folder import RunFolder
from ajet.core.run.run_tasks import RunTasks
from ajet.core.terminal import Console
from ajet.core.trajectory.trajectory import Group


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
        self.client = make_trainer_client(config, self.loaded, self.template)
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

    async def train(self) -> None:
        try:
            await self.async_run.train()
        finally:
            self.gateway.close()
            await self.client.close()

    async def save(self, step: int, run: dict[str, Any]) -> None:
        run = self.async_run.with_explorer_state(run)
        self.checkpoints.save(self.folder.checkpoints, step, run)
        self.async_run.on_checkpoint()

    async def _validate_if_due(self) -> None:
        """Validates if it is due, and drops what the engine cached of it, as backbone debug
        does."""
        if await self.run.validate_if_due(self.validator, self._cross_entropy):
            await self.client.empty_cache()

    async def _cross_entropy(self, groups: Sequence[Group]) -> float:
        return self.client.learner.cross_entropy(groups)
