"""What a layout gets and what it gives back.

A sample of six tokens, the last sampled one at position 5, becomes a row of five inputs: the last
sampled token is predicted, never read, and what follows it is not computed at all.

    token_ids   [s q] [a0 a1] [o] [b0]        input_ids  s  q  a0 a1 o
    loss_mask    0 0    1  1   0   1          read          1  2     4     (positions)
                                              targets       a0 a1    b0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ajet.core.trajectory.sample import TrainingSample


@dataclass(frozen=True, slots=True)
class Row:
    """One sample as the forward pass needs it; `read` and what follows have one entry for each
    trained token."""

    input_ids: NDArray[np.int64]
    read: NDArray[np.int64]
    targets: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    advantages: NDArray[np.float32]
    weight: float

    @classmethod
    def of(cls, sample: TrainingSample, weight: float) -> Row:
        """`sample` has at least one trained token."""
        trained = np.flatnonzero(sample.loss_mask)
        return cls(
            input_ids=sample.token_ids[: trained[-1]],
            read=trained - 1,
            targets=sample.token_ids[trained],
            logprobs=sample.logprobs[trained],
            advantages=sample.advantages[trained],
            weight=weight,
        )

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True, slots=True)
class Readout:
    """Features ``[U, …]``, which `head` turns into logits ``[U, vocab]``. The k-th trained token,
    rows in order, reads row ``index_M[k]``."""

    features_UD: Tensor
    head: Callable[[Tensor], Tensor]
    vocab_size: int
    index_M: Tensor
    num_computed: int  # tokens that the forward pass went through, padding included


class Layout(Protocol):
    """Bound to one model; holds no state of a batch."""

    name: str

    def __init__(self, model: nn.Module) -> None: ...

    def split(self, rows: Sequence[Row], budget: int) -> list[list[Row]]:
        """Micro-batches of at most `budget` computed tokens; a longer row stays alone."""
        ...

    def read_out(self, rows: Sequence[Row]) -> Readout:
        """Forward pass over one micro-batch."""
        ...


def device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
