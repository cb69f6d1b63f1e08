"""An asynchronous run: explorer, trainer and the buffer between them, wherever their parts are.

    explorer ── groups ──> buffer ── batches ──> trainer        at most `max_staleness` updates
       ^                                            │           between a token and its training
       └─────────────── weights ────────────────────┘

A killed run resumes from its last checkpoint: what was finished since then is in the buffer, what
was on its way begins again. Not covered: making the parts (one_process.py, training.py).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

from loguru import logger

from ajet.backbones.disaggregated.explorer import Explorer, ExplorerSettings
from ajet.backbones.disaggregated.trainer import Trainer, TrainerClient
from ajet.backbones.disaggregated.version_state import VersionState
from ajet.core.buffer.buffer import ATTEMPT, ATTEMPTS, Buffer
from ajet.core.buffer.priority import priority_named
from ajet.core.buffer.staleness import StalenessBound
from ajet.core.config import AjetConfig
from ajet.core.errors import RunFailed
from ajet.core.record.run_folder import RunFolder
from ajet.core.rollout.batch import BatchSettings
from ajet.core.rollout.request import RolloutRunner
from ajet.core.run.resume_point import ResumePoint
from ajet.core.run.training_run import TrainingRun
from ajet.core.update.checkpoint import step_of


def open_buffer(config: AjetConfig, folder: RunFolder) -> Buffer:
    """The config's database, or one in the run folder."""
    section = config.trinity.buffer
    return Buffer(
        section.url or f"sqlite:///{folder.buffer_db.resolve()}",
        StalenessBound.from_config(config),
        run=folder.run_id(),
        priority=priority_named(section.priority),
        max_reuse=section.max_reuse,
        capacity=section.capacity,
    )


def explorer_settings(config: AjetConfig, total_steps: int) -> ExplorerSettings:
    """What the config says of an explorer."""
    return ExplorerSettings(
        batch=BatchSettings.from_config(config),
        total_steps=total_steps,
        max_failure_rate=config.ajet.rollout.max_failure_rate,
        partial_rollout=config.trinity.partial_rollout,
    )


class AsyncRun:
    """`runner` runs the groups of training, `validator` those of validation."""

    def __init__(
        self,
        run: TrainingRun,
        client: TrainerClient,
        *,
        runner: RolloutRunner,
        validator: RolloutRunner,
        resume_point: ResumePoint | None,
    ) -> None:
        config, tasks = run.config, run.tasks
        self.run, self.client = run, client
        self.buffer = open_buffer(config, run.folder)
        # An explorer of a trainer in a process of its own has nothing to say any more.
        attempt = {ATTEMPT: secrets.token_hex(8), ATTEMPTS: "{}"}
        reopen(self.buffer, resume_point, config.ajet.trainer_common.resume, attempt)
        self.versions = VersionState(run.state.step)
        settings = explorer_settings(config, tasks.total_steps)
        self.explorer = Explorer(
            run.batches(runner), runner, tasks.cursor, self.buffer, self.versions, settings
        )
        self.explorer.load_state_dict(run.state.explorer if resume_point is not None else None)
        self.trainer = Trainer(
            client,
            self.buffer,
            self.versions,
            run,
            lambda: run.validate_if_due(validator),
            self.explorer,
            explorer_asks=config.trinity.synchronizer.sync_style == "explorer_driven",
        )

    async def train(self) -> None:
        """Trains all steps that are left."""
        try:
            await self.client.publish(self.versions.trained)
            await self._both()
        except RunFailed:  # raised by a rollout: the policy is still that of the last whole step
            await self.run.save_if_new()
            raise
        finally:
            self.buffer.close()

    def saved(self) -> None:
        """There is another checkpoint."""
        forget_saved(self.buffer, self.run.folder)

    def with_own_state(self, run: dict[str, Any]) -> dict[str, Any]:
        """The run's state for a checkpoint, with the explorer's of this moment."""
        return run | {"explorer": self.explorer.state_dict()}

    async def _both(self) -> None:
        """Until the trainer is through; whatever one of them raises ends the other. A step that is
        under way when the explorer fails is finished: no checkpoint is of half an update."""
        trainer = asyncio.create_task(self.trainer.run())
        explorer = asyncio.create_task(self.explorer.run())
        trainer.add_done_callback(lambda _: self.versions.end())
        try:
            await asyncio.wait({trainer, explorer}, return_when=asyncio.FIRST_COMPLETED)
            if not trainer.done():
                self.trainer.stop()
                await trainer
                explorer.result()  # it has nothing to end with but an error
            await trainer
        finally:
            for task in (trainer, explorer):
                task.cancel()
            await asyncio.wait({trainer, explorer})


def forget_saved(buffer: Buffer, folder: RunFolder) -> None:
    """Removes what none of the folder's checkpoints can ask for."""
    buffer.forget(min(step_of(each) for each in folder.checkpoints.glob("step_*")))


def reopen(
    buffer: Buffer, resume_point: ResumePoint | None, resume: str, told: Mapping[str, str]
) -> None:
    """Restores the buffer as it was at the checkpoint, with what was finished since then; `told`
    are notes for explorers."""
    if resume == "disable":
        buffer.clear()
    lost = buffer.reopen(0 if resume_point is None else resume_point.step, **told)
    if lost:
        logger.warning(
            f"{lost} finished groups are removed from the buffer: they are too far from the "
            "checkpoint for trinity.max_staleness, sampled too early or by updates that were lost"
        )
