"""Explorer and trainer in this process, for a laptop and for reading.

With a staleness bound of 0 they take turns, and episodes, losses and weights are those of backbone
debug, bit for bit. Not covered: a cluster (training.py).
"""

from __future__ import annotations

from typing import Any

from ajet import assembly
from ajet.backbones.disaggregated.async_run import AsyncRun
from ajet.backbones.disaggregated.trainer_clients import make_trainer_client
from ajet.backbones.local_run import begin_local_run
from ajet.core.bounded_loop import run_bounded
from ajet.core.config import AjetConfig
from ajet.core.interrupt import Interrupt
from ajet.core.judge import make_judge
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.summary import RunSummary
from ajet.core.terminal import Console


class OneProcessTraining:
    """One attempt of a run: the objects that live from its first step to its last."""

    def __init__(
        self, config: AjetConfig, folder: RunFolder, interrupt: Interrupt, console: Console
    ) -> None:
        self.folder = folder
        tasks = assembly.read_tasks(config)
        assembly.set_threads(config)
        loaded = assembly.load_policy_model(config)
        template = assembly.make_template(loaded)
        self.client = make_trainer_client(config, loaded, template)
        self.gateway = assembly.make_gateway(config)
        shared = {"judge": make_judge(config), "gateway": self.gateway}
        endpoint = self.client.endpoint
        runner = assembly.make_runner(config, endpoint, template, mode="train", **shared)
        self.validator = assembly.make_runner(config, endpoint, template, mode="eval", **shared)
        self.run, self.checkpoints, resume_point = begin_local_run(
            config,
            folder,
            tasks,
            loaded,
            template,
            self.client.learner,
            save=self._save,
            interrupt=interrupt,
            console=console,
        )
        self.client.on_progress = self.run.progress.fraction
        self.async_run = AsyncRun(
            self.run,
            self.client,
            runner=runner,
            validate=self._validate_if_due,
            resume_point=resume_point,
        )

    def fit(self) -> RunSummary:
        """Trains all steps that are left, and writes the summary last."""
        with self.run:
            run_bounded(self._train())
        return self.run.finish()

    async def _train(self) -> None:
        try:
            await self.async_run.train()
        finally:
            self.gateway.close()
            await self.client.close()

    async def _validate_if_due(self) -> None:
        """Validates if it is due, and drops what the engine cached of it, as backbone debug
        does."""
        if await self.run.validate_if_due(self.validator, self.client.cross_entropy):
            self.client.engine.publish(self.client.engine.policy_version)

    async def _save(self, step: int, run: dict[str, Any]) -> None:
        self.checkpoints.save(
            self.folder.checkpoints, step, self.async_run.with_explorer_state(run)
        )
        self.async_run.on_checkpoint()
