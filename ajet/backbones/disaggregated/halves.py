"""The two halves of a run, joined: they are given their parts, wherever those are.

    explorer ── groups ──> buffer ── batches ──> trainer        at most `max_staleness` updates
       ^                                            │           between a token and its training
       └─────────────── weights ────────────────────┘

A killed run goes on from its last checkpoint: what was finished since then is in the buffer, what
was on its way begins again. Not covered: making the parts (one_process.py, training.py).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

from loguru import logger

from ajet.backbones.disaggregated.explorer import Explorer, ExplorerSettings
from ajet.backbones.disaggregated.place import Place
from ajet.backbones.disaggregated.trainer import Seat, Trainer
from ajet.core import assembly
from ajet.core.buffer.buffer import SITTING, SITTINGS, Buffer
from ajet.core.buffer.priority import priority_named
from ajet.core.config import AjetConfig
from ajet.core.errors import RunFailed
from ajet.core.record.books import Books, Start
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.validation import Validation
from ajet.core.rollout.batch import GroupRunner
from ajet.core.update.checkpoint import step_of


def open_buffer(config: AjetConfig, folder: RunFolder) -> Buffer:
    """The config's database, or one in the run folder."""
    section = config.trinity.buffer
    return Buffer(
        section.url or f"sqlite:///{folder.buffer_db.resolve()}",
        assembly.staleness_bound(config),
        run=folder.run_id(),
        priority=priority_named(section.priority),
        max_reuse=section.max_reuse,
        capacity=section.capacity,
    )


def explorer_settings(config: AjetConfig, total_steps: int) -> ExplorerSettings:
    """`max_env_worker` episodes at the same time are so many whole groups, one at least."""
    batch, rollout = assembly.batch_settings(config), config.ajet.rollout
    return ExplorerSettings(
        batch=batch,
        total_steps=total_steps,
        max_groups=max(1, rollout.max_env_worker // batch.group_size),
        max_failure_rate=rollout.max_failure_rate,
        partial_rollout=config.trinity.partial_rollout,
    )


class Halves:
    """`runner` plays for training, `validator` for validation; `start` is what the run goes on
    from."""

    def __init__(
        self,
        books: Books,
        seat: Seat,
        *,
        runner: GroupRunner,
        validator: GroupRunner,
        start: Start | None,
    ) -> None:
        config, tasks = books.config, books.tasks
        self.books, self.seat = books, seat
        self.buffer = open_buffer(config, books.folder)
        # An explorer of a trainer that was alone has nothing to say any more.
        sitting = {SITTING: secrets.token_hex(8), SITTINGS: "{}"}
        reopen(self.buffer, start, config.ajet.trainer_common.resume, sitting)
        self.place = Place(books.state.step)
        batch = books.batch_rollout(runner)
        settings = explorer_settings(config, tasks.total_steps)
        self.explorer = Explorer(batch, tasks.cursor, self.buffer, self.place, settings)
        self.explorer.load_state_dict(books.state.explorer if start is not None else None)
        self.trainer = Trainer(
            seat,
            self.buffer,
            self.place,
            books,
            Validation(validator, books),
            self.explorer,
            explorer_asks=config.trinity.synchronizer.sync_style == "explorer_driven",
        )

    async def run(self) -> None:
        """All steps that are left."""
        try:
            await self.seat.publish(self.place.trained)
            await self._both()
        except RunFailed:  # raised by a rollout: the policy is still that of the last whole step
            await self.books.save_if_new()
            raise
        finally:
            self.buffer.close()

    def saved(self) -> None:
        """There is a checkpoint more."""
        forget_saved(self.buffer, self.books.folder)

    def with_own_state(self, run: dict[str, Any]) -> dict[str, Any]:
        """The run's state for a checkpoint, with the explorer's of this moment."""
        return run | {"explorer": self.explorer.state_dict()}

    async def _both(self) -> None:
        """Until the trainer is through; whatever one of them raises ends the other. A step that
        goes on when the explorer fails is finished: no checkpoint is of half an update."""
        trainer = asyncio.create_task(self.trainer.run())
        explorer = asyncio.create_task(self.explorer.run())
        trainer.add_done_callback(lambda _: self.place.end())
        try:
            await asyncio.wait({trainer, explorer}, return_when=asyncio.FIRST_COMPLETED)
            if not trainer.done():
                self.trainer.stop()
                await trainer
                explorer.result()  # it has nothing to end with but an error
            await trainer
        finally:
            for half in (trainer, explorer):
                half.cancel()
            await asyncio.wait({trainer, explorer})


def forget_saved(buffer: Buffer, folder: RunFolder) -> None:
    """What none of the folder's checkpoints can ask for may go."""
    buffer.forget(min(step_of(each) for each in folder.checkpoints.glob("step_*")))


def reopen(buffer: Buffer, start: Start | None, resume: str, told: Mapping[str, str]) -> None:
    """The buffer as it was at the checkpoint, with what was finished since then; explorers hear
    what is `told`."""
    if resume == "disable":
        buffer.clear()
    lost = buffer.reopen(0 if start is None else start.step, **told)
    if lost:
        logger.warning(
            f"{lost} finished groups are removed from the buffer: they are too far from the "
            "checkpoint for trinity.max_staleness, sampled too early or by updates that were lost"
        )
