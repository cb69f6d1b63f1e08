"""What was sent: the name, type, shape and checksum of every tensor, and the version of them all.

    Manifest(version=7, tensors=(TensorInfo("model.norm.weight", "float32", (128,), "9f…"), …))
    SyncReport(version=7, seconds=0.09, num_bytes=2_400_000, checksum="41…")    what arrived

The sender writes the manifest, a receiver computes its own from what it got: the two checksums are
equal or the load fails with `WeightsError`.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from ajet.core.errors import ModelError
from ajet.core.weight_sync.checksum import combined_checksum, tensor_checksum

if TYPE_CHECKING:
    from torch import Tensor

SyncMethod = Literal["checkpoint", "memory", "nccl"]
MAX_NAMED = 3


class WeightsError(ModelError):
    """Weights did not arrive as they were sent, or do not fit; the message is one line."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as its sender saw it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    checksum: str

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> TensorInfo:
        """What `tensor` is."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        return cls(name, dtype, tuple(tensor.shape), tensor_checksum(tensor))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TensorInfo:
        """From `to_json`'s form."""
        return cls(data["name"], data["dtype"], tuple(data["shape"]), data["checksum"])

    @property
    def num_bytes(self) -> int:
        import torch

        return prod(self.shape) * getattr(torch, self.dtype).itemsize

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Manifest:
    """All tensors of one version, in the order in which they were sent."""

    version: int
    tensors: tuple[TensorInfo, ...]

    @property
    def checksum(self) -> str:
        """One checksum for all of them, whatever their order."""
        return combined_checksum((t.name, t.dtype, t.shape, t.checksum) for t in self.tensors)

    @property
    def num_bytes(self) -> int:
        return sum(info.num_bytes for info in self.tensors)

    def dumps(self) -> str:
        """As JSON."""
        tensors = [info.to_json() for info in self.tensors]
        return json.dumps({"version": self.version, "checksum": self.checksum, "tensors": tensors})

    @classmethod
    def loads(cls, text: str) -> Manifest:
        """From `dumps`' form; WeightsError where its own checksum does not match."""
        data = json.loads(text)
        found = cls(data["version"], tuple(TensorInfo.from_json(info) for info in data["tensors"]))
        if found.checksum != data["checksum"]:
            raise WeightsError(f"weights of version {found.version}: the manifest is damaged")
        return found


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What a load of weights was: `num_bytes` arrived and are in the model."""

    version: int
    seconds: float
    num_bytes: int
    checksum: str


class WeightSource(Protocol):
    """Where a receiver finds the weights of one version."""

    @property
    def version(self) -> int: ...

    @property
    def can_be_read_again(self) -> bool:
        """Whether `tensors` gives the same once more. A broadcast comes once."""
        ...

    def tensors(self) -> Generator[tuple[TensorInfo, Tensor], None, None]:
        """Each tensor with what its sender said of it."""
        ...


@runtime_checkable
class BroadcastSource(Protocol):
    """Weights of one version that are sent to several receivers at once, by somebody who must know
    to how many. They can be sent again."""

    @property
    def version(self) -> int: ...

    async def make_sources(self, number: int) -> Sequence[WeightSource]:
        """A source for each of `number` receivers, all of whom must take theirs now."""
        ...


def shorten_list(names: list[str]) -> str:
    """A few of many names, for one line."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
