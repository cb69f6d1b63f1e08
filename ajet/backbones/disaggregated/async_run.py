"""An asynchronous run: explorer, trainer and the buffer between them, in one driver process.

explorer ── groups ──> buffer ── batches ──> trainer        at most `max_staleness` updates
   ^                                            │           between a token and its training
   └─────────────── weights ────────────────────┘
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from loguru import logger

from ajet.backbones.disaggregated.explorer import Explorer, ExplorerSettings, VersionState
from ajet.backbones.disaggregated.trainer import Trainer, TrainerClient
from ajet.core.buffer.buffer import ATTEMPT, ATTEMPTS, GroupBuffer
from ajet.core.buffer.priority import priority_named
from ajet.core.buffer.staleness import StalenessBound, version_range
from ajet.core.checkpoint.manifest import step_of
from ajet.core.config import AjetConfig
from ajet.core.record.run_folder import RunFolder
from ajet.core.rollout.group import GroupRunner
from ajet.core.run.run_state import ResumePoint
from ajet.core.run.training_run import TrainingRun
from ajet.core.trajectory.trajectory import Group, Trajectory


def open_buffer(config: AjetConfig, folder: RunFolder) -> GroupBuffer:
    """Opens the config's database, or one in the run folder."""
    section = config.trinity.buffer
    return GroupBuffer(
        section.url or f"sqlite:///{folder.buffer_db.resolve()}",
        StalenessBound.from_config(config),
        run=folder.run_id(),
        priority=priority_named(section.priority),
        max_reuse=section.max_reuse,
        capacity=section.capacity,
    )


class AsyncRun:
    """Explorer and trainer of a run. `runner` runs the groups of training; `validate` measures
    held-out success if a validation is due. A killed run resumes from its last checkpoint: groups
    that finished after it are in the buffer, groups that were running begin again."""

    def __init__(
        self,
        run: TrainingRun,
        client: TrainerClient,
        *,
        runner: GroupRunner,
        validate: Callable[[], Awaitable[object]],
        resume_point: ResumePoint | None,
    ) -> None:
        config, tasks = run.config, run.tasks
        self.run, self.client = run, client
        self.buffer = open_buffer(config, run.folder)
        # The new id makes the buffer refuse what an explorer left over from a run of mode `train`,
        # or a thread of the attempt before, still tries to store.
        attempt = {ATTEMPT: secrets.token_hex(8), ATTEMPTS: "{}"}
        reopen_buffer(self.buffer, resume_point, config.ajet.trainer_common.resume, attempt)
        self.buffer.attempt = attempt[ATTEMPT]
        run.on_saved = partial(prune_buffer, self.buffer, run.folder)
        self.versions = VersionState(run.state.step)
        settings = ExplorerSettings.from_config(config, tasks.total_steps)
        self.explorer = Explorer(
            run.batches(runner),
            runner.admission,
            tasks.cursor,
            self.buffer,
            self.versions,
            settings,
        )
        self.explorer.load_state_dict(run.state.explorer if resume_point is not None else None)
        self.trainer = Trainer(client, self.buffer, self.versions, run, validate, self.explorer)

    async def train(self) -> None:
        try:
            async with self.run.saved_at_end():
                await self.client.publish(self.versions.trained)
                await self._explore_and_train()
        finally:
            self.buffer.close()

    def with_explorer_state(self, run: dict[str, Any]) -> dict[str, Any]:
        """Returns the run's state for a checkpoint, with the explorer's present state in it."""
        return run | {"explorer": self.explorer.state_dict()}

    async def _explore_and_train(self) -> None:
        """Runs both until the trainer is done; an error of one ends the other. If the explorer
        fails during an update, the update is finished first, so that no checkpoint holds half of
        one."""
        trainer = asyncio.create_task(self.trainer.run())
        explorer = asyncio.create_task(self.explorer.run())
        trainer.add_done_callback(lambda _: self.versions.end())
        try:
            await asyncio.wait({trainer, explorer}, return_when=asyncio.FIRST_COMPLETED)
            if not trainer.done():
                self.trainer.stop()
                await trainer
                explorer.result()  # raises: the explorer ends before the trainer only on an error
            await trainer
        finally:
            for task in (trainer, explorer):
                task.cancel()
            await asyncio.wait({trainer, explorer})


def left_out_reason(
    buffer: GroupBuffer, versions: VersionState, trajectory: Trajectory
) -> str | None:
    """Returns why an episode that has just ended will not be trained: its oldest token is older
    than the staleness bound allows for the next step. Returns None if it may be trained."""
    alone = Group(trajectory.group_id, (trajectory,), None)
    versions_of_group = version_range(alone)
    is_stale = versions_of_group is not None and versions_of_group[0] < buffer.bound.oldest_allowed(
        versions.trained
    )
    return buffer.expired_reason(alone, versions.trained) if is_stale else None


def prune_buffer(buffer: GroupBuffer, folder: RunFolder) -> None:
    """Removes groups that no run needs that resumes from one of the folder's checkpoints."""
    buffer.prune(min(step_of(checkpoint) for checkpoint in folder.checkpoints.glob("step_*")))


def reopen_buffer(
    buffer: GroupBuffer, resume_point: ResumePoint | None, resume: str, notes: Mapping[str, str]
) -> None:
    """Restores the buffer's state at the checkpoint, keeps the groups that finished since then, and
    writes the notes for explorers."""
    if resume == "disable":
        buffer.clear()
    num_removed = buffer.reopen(0 if resume_point is None else resume_point.step, **notes)
    if num_removed:
        logger.warning(
            f"{num_removed} finished groups are removed from the buffer and run again: they were "
            "sampled by weights of updates that are lost"
        )
