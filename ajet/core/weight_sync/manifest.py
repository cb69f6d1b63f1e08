"""Describes sent weights: the version, and name, dtype, shape and checksum of every tensor. The
receiver computes the checksums again: if they differ, the load fails with `WeightsError`.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.weight_sync.adapters import Adapters
from ajet.core.weight_sync.checksum import combined_checksum, tensor_checksum

if TYPE_CHECKING:
    from torch import Tensor

SyncMethod = Literal["checkpoint", "memory", "nccl", "ipc"]
MAX_NAMED = 3


class WeightsError(ModelError):
    """Raised when weights did not arrive as they were sent, or do not fit."""

    usual_code = Code.WEIGHTS_NOT_ARRIVED


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Describes one tensor as it was sent."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    checksum: str

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> TensorInfo:
        dtype = str(tensor.dtype).removeprefix("torch.")
        return cls(name, dtype, tuple(tensor.shape), tensor_checksum(tensor))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TensorInfo:
        """Reads the form of `to_json`."""
        return cls(data["name"], data["dtype"], tuple(data["shape"]), data["checksum"])

    @property
    def num_bytes(self) -> int:
        import torch

        return prod(self.shape) * getattr(torch, self.dtype).itemsize

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Describes all tensors of one version, in the order in which they were sent."""

    version: int
    tensors: tuple[TensorInfo, ...]

    @property
    def checksum(self) -> str:
        """One checksum for all tensors, independent of their order."""
        return combined_checksum((t.name, t.dtype, t.shape, t.checksum) for t in self.tensors)

    @property
    def num_bytes(self) -> int:
        return sum(info.num_bytes for info in self.tensors)

    def dumps(self) -> str:
        """Returns the manifest as JSON text."""
        tensors = [info.to_json() for info in self.tensors]
        return json.dumps({"version": self.version, "checksum": self.checksum, "tensors": tensors})

    @classmethod
    def loads(cls, text: str) -> Manifest:
        """Reads the text of `dumps`; raises `WeightsError` if its checksum does not match."""
        data = json.loads(text)
        infos = tuple(TensorInfo.from_json(info) for info in data["tensors"])
        manifest = cls(data["version"], infos)
        if manifest.checksum != data["checksum"]:
            raise WeightsError(f"weights of version {manifest.version}: the manifest is damaged")
        return manifest


@dataclass(frozen=True, slots=True)
class SyncReport:
    """A finished load of weights."""

    version: int
    seconds: float
    num_bytes: int
    checksum: str


class WeightSource(Protocol):
    """Gives a receiver the weights of one version."""

    @property
    def version(self) -> int: ...

    @property
    def can_be_read_again(self) -> bool:
        """False for a broadcast, which can be received only once."""
        ...

    @property
    def adapters(self) -> Adapters | None:
        """Describes the tensors if they are adapters without base weights."""
        ...

    def tensors(self) -> Generator[tuple[TensorInfo, Tensor], None, None]:
        """Yields each tensor with its sender's description."""
        ...


@runtime_checkable
class BroadcastSource(Protocol):
    """Sends the weights of one version to several receivers at once, which must be known in
    advance. It can send them again."""

    @property
    def version(self) -> int: ...

    async def make_sources(self, names: Sequence[str]) -> Sequence[WeightSource]:
        """Returns a source for each receiver; all must read theirs at the same time."""
        ...


def shorten_list(names: list[str]) -> str:
    """Returns the first few of many names, for a message of one line."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
