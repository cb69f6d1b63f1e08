"""Begins a run whose learner is in this process, from a checkpoint if there is one.

Not covered: runs on a cluster (cluster/training_attempt.py); engines, which each backbone makes for
itself.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from loguru import logger

from ajet import assembly
from ajet.core.config import AjetConfig
from ajet.core.config.precision import describe_precision
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.interrupt import Interrupt
from ajet.core.learning.adapter_learners import AdapterLearners
from ajet.core.learning.checkpoints import LearnerCheckpoints
from ajet.core.learning.learner import Learner
from ajet.core.model.load import LoadedModel
from ajet.core.record.origin import RunOrigin
from ajet.core.record.run_folder import RunFolder
from ajet.core.run.resume_point import ResumePoint, find_resume_point
from ajet.core.run.run_tasks import RunTasks
from ajet.core.run.training_run import Save, TrainingRun
from ajet.core.terminal import Console


class LocalRun(NamedTuple):
    """Holds a run that has begun; `resume_point` is the checkpoint that the learner has loaded."""

    run: TrainingRun
    checkpoints: LearnerCheckpoints
    resume_point: ResumePoint | None


def begin_local_run(
    config: AjetConfig,
    folder: RunFolder,
    tasks: RunTasks,
    loaded: LoadedModel,
    template: ChatTemplate,
    learner: Learner | AdapterLearners,
    *,
    save: Save,
    interrupt: Interrupt,
    console: Console,
) -> LocalRun:
    """Loads the checkpoint to resume from into `learner`, begins the run there, and saves what its
    episodes are read with later. The template's day becomes the run's first day."""
    trainer = config.ajet.trainer_common
    logger.info(describe_precision(config, gpu=learner.policy.device.type == "cuda"))
    checkpoints = LearnerCheckpoints(learner, loaded, keep=trainer.max_checkpoints_to_keep)
    resume_point = find_resume_point(folder, trainer.resume)
    if resume_point is not None:
        checkpoints.load(resume_point.path)
    run = TrainingRun(
        config,
        folder,
        tasks,
        save=save,
        interrupt=interrupt,
        console=console,
        resume_point=resume_point,
    )
    template.today = datetime.fromisoformat(run.state.begun)
    origin = RunOrigin.from_config(config, template.stop_token_ids, run.state.begun)
    run.recorder.save_inputs(loaded.tokenizer, origin, assembly.user_files(config))
    return LocalRun(run, checkpoints, resume_point)
