"""Weights in this process's memory or on its device, which are not written or sent.

A model in the same process copies them; an SGLang server on the same GPU gets handles to the memory
(`/update_weights_from_tensor`). The trainer must not change them before the load is over.
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
    """A source over weights in memory; `weights()` returns all (name, tensor) pairs."""

    version: int
    weights: Callable[[], Iterable[tuple[str, Tensor]]]
    adapters: Adapters | None = None

    @property
    def can_be_read_again(self) -> bool:
        return True

    def tensors(self) -> Generator[tuple[TensorInfo, Tensor], None, None]:
        """Yields the tensors with their descriptions."""
        for name, tensor in self.weights():
            yield TensorInfo.of(name, tensor), tensor
