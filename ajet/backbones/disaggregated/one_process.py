"""Explorer and trainer in this process, for a laptop and for reading.

With a staleness bound of 0 they take turns, and episodes, losses and weights are those of backbone
debug, bit for bit. Not covered: a cluster (training.py).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from rich.console import Console

from ajet import assembly
from ajet.backbones.disaggregated.async_run import AsyncRun
from ajet.backbones.disaggregated.trainer_clients import make_trainer_client
from ajet.core.bounded_loop import run_bounded
from ajet.core.config import AjetConfig
from ajet.core.interrupt import Interrupt
from ajet.core.judge import make_judge
from ajet.core.learning.checkpoints import LearnerCheckpoints
from ajet.core.record.origin import RunOrigin
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.summary import RunSummary
from ajet.core.run.resume_point import find_resume_point
from ajet.core.run.training_run import TrainingRun


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
        validator = assembly.make_runner(config, endpoint, template, mode="eval", **shared)
        keep = config.ajet.trainer_common.max_checkpoints_to_keep
        self.checkpoints = LearnerCheckpoints(self.client.learner, loaded, keep=keep)
        resume_point = find_resume_point(folder, config.ajet.trainer_common.resume)
        if resume_point is not None:
            self.checkpoints.load(resume_point.path)
        self.run = TrainingRun(
            config,
            folder,
            tasks,
            save=self._save,
            interrupt=interrupt,
            console=console,
            resume_point=resume_point,
        )
        self.client.on_progress = self.run.progress.fraction
        template.today = datetime.fromisoformat(self.run.state.begun)
        origin = RunOrigin.from_config(config, template.stop_token_ids, self.run.state.begun)
        self.run.recorder.save_inputs(loaded.tokenizer, origin, assembly.user_files(config))
        self.async_run = AsyncRun(
            self.run, self.client, runner=runner, validator=validator, resume_point=resume_point
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

    async def _save(self, step: int, run: dict[str, Any]) -> None:
        self.checkpoints.save(
            self.folder.checkpoints, step, self.async_run.with_explorer_state(run)
        )
        self.async_run.on_checkpoint()
