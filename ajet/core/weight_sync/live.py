"""Weights in this process's memory or on its device: nothing is written or sent.

A model in the same process copies them, and an SGLang server on the same GPU is given handles to
the device's memory (`/update_weights_from_tensor`).

Not covered: a trainer that changes the weights during the load; it waits until the load is over.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ajet.core.weight_sync.adapters import Adapters
from ajet.core.weight_sync.manifest import TensorInfo

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class LiveSource:
    """Reads weights that are in memory; each call of `weights()` gives every (name, tensor)."""

    version: int
    weights: Callable[[], Iterable[tuple[str, Tensor]]]
    adapters: Adapters | None = None

    @property
    def can_be_read_again(self) -> bool:
        return True

    def tensors(self) -> Generator[tuple[TensorInfo, Tensor], None, None]:
        """Yields each tensor as it is now."""
        for name, tensor in self.weights():
            yield TensorInfo.of(name, tensor), tensor
