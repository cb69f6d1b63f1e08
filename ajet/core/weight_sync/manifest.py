"""Descriptions of sent weights: name, type, shape and checksum of every tensor, and the version.

    Manifest(version=7, tensors=(TensorInfo("model.norm.weight", "float32", (128,), "9f…"), …))
    SyncReport(version=7, seconds=0.09, num_bytes=2_400_000, checksum="41…")    what arrived

The sender writes the manifest, and a receiver computes its own from what it received: the two
checksums are equal, or the load fails with `WeightsError`.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from ajet.core.error_codes import Code
from ajet.core.errors import ModelError
from ajet.core.weight_sync.adapters import Adapters
from ajet.core.weight_sync.checksum import combined_checksum, tensor_checksum

if TYPE_CHECKING:
    from torch import Tensor

SyncMethod = Literal["checkpoint", "memory", "nccl", "ipc"]
MAX_NAMED = 3


class WeightsError(ModelError):
    """Reports in one line that weights did not arrive as they were sent, or do not fit."""

    usual_code = Code.WEIGHTS_NOT_ARRIVED


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Describes one tensor as its sender saw it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    checksum: str

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> TensorInfo:
        """Describes `tensor`."""
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
        """Returns one checksum for all tensors, whatever their order."""
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
        """Reads the text of `dumps`; raises `WeightsError` where its own checksum does not
        match.
        """
        data = json.loads(text)
        manifest = cls(data["version"], tuple(TensorInfo.from_json(info) for info in data["tensors"]))
        if manifest.checksum != data["checksum"]:
            raise WeightsError(f"weights of version {manifest.version}: the manifest is damaged")
        return manifest


@dataclass(frozen=True, slots=True)
class SyncReport:
    """Reports a finished load of weights: `num_bytes` arrived and are in the model."""

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
        """Tells whether `tensors` can be called twice; a broadcast can be received only once."""
        ...

    @property
    def adapters(self) -> Adapters | None:
        """Describes the tensors if they are adapters alone."""
        ...

    def tensors(self) -> Generator[tuple[TensorInfo, Tensor], None, None]:
        """Yields each tensor with its sender's description."""
        ...


@runtime_checkable
class BroadcastSource(Protocol):
    """Gives the weights of one version to several receivers at once.

    The sender must know them in advance. It can send the weights again.
    """

    @property
    def version(self) -> int: ...

    async def make_sources(self, names: Sequence[str]) -> Sequence[WeightSource]:
        """Returns a source for each receiver, by its name; all must read theirs now."""
        ...


def shorten_list(names: list[str]) -> str:
    """Returns the first few of many names, for a message of one line."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
