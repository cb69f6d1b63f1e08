"""Weights that are in this process's memory, or on its device: nothing is written, nothing is sent.

For engines beside the trainer: a model in the same process copies them, a server on the same GPU is
given handles of the device's memory (SGLang's `/update_weights_from_tensor`).

Not covered: a trainer that changes them meanwhile (it waits until the load is over).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ajet.core.weight_sync.manifest import TensorInfo

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class LiveSource:
    """`weights()` gives every (name, tensor), again and again."""

    version: int
    weights: Callable[[], Iterable[tuple[str, Tensor]]]

    @property
    def can_be_read_again(self) -> bool:
        return True

    def tensors(self) -> Generator[tuple[TensorInfo, Tensor], None, None]:
        """Each as it is now."""
        for name, tensor in self.weights():
            yield TensorInfo.of(name, tensor), tensor
