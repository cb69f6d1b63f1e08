"""What clients have on the server: sessions, models with their requests, and samplers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ajet.core.checkpoint.checkpoint import read_state
from ajet.core.checkpoint.manifest import find_checkpoint
from ajet.serve.tinker.futures import Futures, RequestQueue
from ajet.serve.tinker.models import BaseModel, TrainedModel, saved_lora
from ajet.serve.tinker.store import StepRecord

RESUME, SNAPSHOTS = "resume", "snapshots"
KEPT_SNAPSHOTS = 8
"""The latest snapshots without a name that a model keeps."""
SAVING_SHARE = 0.1
"""Checkpoints take at most about this share of a model's time. What lies between two of them is
computed again after a kill."""


@dataclass(eq=False)
class Session:
    """What a client says about its session; `number` counts a server's sessions, for seeds."""

    about: dict[str, Any]
    number: int
    seen_s: float = field(default_factory=time.monotonic)
    """The time of its last sign of life."""


@dataclass(frozen=True, slots=True)
class SamplingSession:
    """What a sampler samples with: the weights of a checkpoint, or with None the base."""

    checkpoint: Path | None
    model_path: str | None = None


class ServedModel:
    """A model that a client trains. Its methods run in the thread that computes.

        RUN/resume/step_N      weights, optimizer and the last request that they include
        RUN/snapshots/SEQ_ID   weights to sample with that have no name; the latest few are kept

    A server that was killed reads the latest checkpoint in resume/ and computes the requests after
    it again: on a CPU the same bits.
    """

    def __init__(
        self,
        base: BaseModel,
        model_id: str,
        folder: Path,
        futures: Futures,
        open_record: Callable[[int], StepRecord],
        trained: TrainedModel | None = None,
    ) -> None:
        """`folder` is that of the training run, which has a checkpoint in resume/ (`begin`);
        `open_record` opens its record after a step. `trained` is the model, if it is in memory."""
        self._base, self.model_id, self.folder = base, model_id, folder
        state = read_state(find_checkpoint(folder / RESUME), is_checked=True)
        self.lora = saved_lora(state)
        self.done_id: int = state["seq_id"]
        """The latest request that is in a checkpoint."""
        self.done_answer: dict[str, Any] | None = state["answer"]
        """The answer to that request."""
        self.queue = RequestQueue(model_id, futures, self.done_id + 1)
        self._older_id, self._dropped_id = 0, 0
        self._trained = trained
        self._open_record = partial(open_record, state["last_step"])
        self._record: StepRecord | None = None
        self._save_s, self._saved_at_s = 0.0, time.monotonic()

    @staticmethod
    def begin(model: TrainedModel, folder: Path) -> None:
        """Writes the first checkpoint of a new model."""
        model.save(folder / RESUME, seq_id=0, answer=None, last_step=0)

    @property
    def trained(self) -> TrainedModel:
        """Returns the model, which is read at the first use after a restart, with its record."""
        if self._trained is None:
            self._trained = TrainedModel(self._base, self.model_id, self.lora)
            self._trained.load(self.folder / RESUME, with_optimizer=True)
        if self._record is None:
            self._record = self._trained.record = self._open_record()
        return self._trained

    def close(self) -> None:
        if self._record is not None:
            self._record.close()

    def is_saving_due(self) -> bool:
        """Tells whether it is time for a checkpoint, by what the last one took."""
        return time.monotonic() - self._saved_at_s >= self._save_s / SAVING_SHARE

    def save(self, seq_id: int, answer: dict[str, Any]) -> None:
        """Writes a checkpoint that includes the request, which must leave no gradients."""
        began_s = time.monotonic()
        trained = self.trained
        assert self._record is not None
        more = {"seq_id": seq_id, "answer": answer, "last_step": self._record.last_step}
        trained.save(self.folder / RESUME, **more)
        self._saved_at_s = time.monotonic()
        self._save_s = self._saved_at_s - began_s
        self._older_id, self.done_id = self.done_id, seq_id

    def take_obsolete(self) -> list[str]:
        """Returns the requests that nothing needs any more, once: those in both checkpoints that
        are kept."""
        first, self._dropped_id = self._dropped_id + 1, self._older_id
        return [f"{self.model_id}:{seq_id}" for seq_id in range(first, self._older_id + 1)]

    def snapshot(self, seq_id: int) -> Path:
        """Writes the weights to sample with, as of the request, and returns the checkpoint."""
        folder = self.folder / SNAPSHOTS
        checkpoint = self.trained.save_weights(folder / f"{seq_id:08d}")
        for old in sorted(folder.iterdir())[:-KEPT_SNAPSHOTS]:
            shutil.rmtree(old)
        return checkpoint


def remove_restart_files(folder: Path) -> None:
    """Removes what a training run would need after a restart; named checkpoints stay."""
    for name in (RESUME, SNAPSHOTS):
        shutil.rmtree(folder / name, ignore_errors=True)
