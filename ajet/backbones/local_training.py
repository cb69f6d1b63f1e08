"""The base class of an attempt of a run whose learner is in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from datetime import datetime
from pathlib import Path
from typing import Any

from loguru import logger

from ajet import assembly
from ajet.core.config import AjetConfig
from ajet.core.config.precision import describe_precision
from ajet.core.images.store import ImageFile
from ajet.core.learning.adapter_learners import AdapterLearners
from ajet.core.learning.checkpoints import LearnerCheckpoints
from ajet.core.learning.learner import Learner
from ajet.core.process.bounded_loop import run_bounded
from ajet.core.process.interrupt import Interrupt
from ajet.core.record.run_folder import RunFolder, RunOrigin
from ajet.core.record.summary import RunSummary
from ajet.core.run.run_state import ResumePoint, find_resume_point
from ajet.core.run.run_tasks import RunTasks
from ajet.core.run.training_run import TrainingRun
from ajet.core.text.terminal import Console


class LocalTraining(ABC):
    """One attempt of a run: the objects that live from its first step to its last."""

    run: TrainingRun
    checkpoints: LearnerCheckpoints
    user_files: list[Path]

    def __init__(
        self,
        config: AjetConfig,
        tasks: RunTasks,
        folder: RunFolder,
        interrupt: Interrupt,
        console: Console,
    ) -> None:
        self.config, self.tasks, self.folder = config, tasks, folder
        self._interrupt, self._console = interrupt, console
        assembly.prepare_torch(config)
        self.loaded = assembly.load_policy_model(config)
        self.template = assembly.make_template(self.loaded)

    @abstractmethod
    async def train(self) -> None: ...

    @abstractmethod
    async def save(self, step: int, run: dict[str, Any], copies: bool) -> Awaitable[object]:
        """Takes what a checkpoint holds, with `run`, the run's state; returns its writing. With
        `copies` training may continue during the write."""

    def fit(self) -> RunSummary:
        with self.run:
            run_bounded(self.train())
        return self.run.finish()

    def begin_run(self, learner: Learner | AdapterLearners) -> ResumePoint | None:
        """Loads the checkpoint to resume from into `learner`, begins the run there, and saves the
        tokenizer and files that its episodes are read with later. Returns the checkpoint."""
        config, trainer = self.config, self.config.ajet.trainer_common
        on_gpu = learner.policy.device.type == "cuda"
        logger.info(describe_precision(config, gpu=on_gpu))
        self.checkpoints = LearnerCheckpoints(
            learner, self.loaded, keep=trainer.max_checkpoints_to_keep
        )
        resume_point = find_resume_point(self.folder, trainer.resume)
        if resume_point is not None:
            self.checkpoints.load(resume_point.path)
        self.run = TrainingRun(
            config,
            self.folder,
            self.tasks,
            save=self.save,
            saves_in_background=config.saves_in_background(on_gpu=on_gpu),
            interrupt=self._interrupt,
            console=self._console,
            resume_point=resume_point,
        )
        # A chat template may print the date: a resumed run must render what the first day did.
        self.template.today = datetime.fromisoformat(self.run.state.begun)
        origin = RunOrigin.from_config(config, self.template.stop_token_ids, self.run.state.begun)
        self.user_files = assembly.user_files(config, self.tasks.workflows)
        self.run.recorder.save_inputs(self.loaded.tokenizer, origin, self.user_files)
        if self.loaded.vision is not None:
            self.loaded.vision.processor.store.keep_in(ImageFile(self.folder.images_db))
            assembly.save_processor_of(config, self.folder.tokenizer)
        return resume_point
