"""Weights by a broadcast of torch.distributed: rank 0 sends, every other rank receives.

    trainer, rank 0     group.send(version, tensors)       header, tensor, header, tensor, … end
    replica, rank r     load_weights(model, group.source(version))

The group is apart from the trainer's own (a process has one default group), so a process may be in
several. gloo moves tensors of the CPU, nccl those of a GPU. Each header says name, type, shape and
checksum; the end says how many there were. A receiver that finds a damaged tensor takes the rest
all the same, so that the others are not left waiting, and fails then.

Not covered: one receiver that dies: the others' broadcast ends with the group's timeout, and the
group must be made anew.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from ajet.core.weight_sync.manifest import Manifest, SyncReport, TensorInfo, WeightsError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Backend = Literal["gloo", "nccl"]


class BroadcastGroup:
    """One process's place in the group. Making it waits until all `size` are there."""

    def __init__(
        self,
        address: str,
        port: int,
        *,
        rank: int,
        size: int,
        backend: Backend = "gloo",
        timeout_s: float = 300.0,
    ) -> None:
        import torch
        import torch.distributed.distributed_c10d as c10d
        from torch._C import _distributed_c10d as dist

        timeout = timedelta(seconds=timeout_s)
        self._where = f"weights by {backend} over {address}:{port}"
        try:
            store = dist.TCPStore(address, port, size, is_master=rank == 0, timeout=timeout)
            prefixed = c10d.PrefixStore("ajet-weights", store)
            if backend == "nccl":
                self._device = torch.device("cuda", torch.cuda.current_device())
                options = c10d.ProcessGroupNCCL.Options()
                options._timeout = timeout
                self._group: Any = c10d.ProcessGroupNCCL(prefixed, rank, size, options)
            else:
                self._device = torch.device("cpu")
                self._group = c10d.ProcessGroupGloo(prefixed, rank, size, timeout)
        except (RuntimeError, ValueError) as error:
            raise WeightsError(f"{self._where}: {_line(error)}") from error
        self.rank, self.size = rank, size

    def send(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> SyncReport:
        """Send to all, one tensor at a time. Only rank 0."""
        import time

        started = time.perf_counter()
        assert self.rank == 0
        infos = []
        for name, tensor in tensors:
            moved = tensor.detach().to(self._device).contiguous()
            infos.append(TensorInfo.of(name, moved))
            self._say(infos[-1].to_json())
            self._broadcast(moved)
        manifest = Manifest(version, tuple(infos))
        self._say({"end": version, "checksum": manifest.checksum, "count": len(infos)})
        seconds = time.perf_counter() - started
        return SyncReport(version, seconds, manifest.num_bytes, manifest.checksum)

    def source(self, version: int) -> BroadcastSource:
        """What rank 0 is going to send as this version."""
        return BroadcastSource(self, version)

    def receive(self, version: int) -> Generator[tuple[TensorInfo, Tensor], None, None]:
        """Take what rank 0 sends; each tensor is new memory."""
        import torch

        infos: list[TensorInfo] = []
        while "end" not in (told := self._hear()):
            info = TensorInfo.of_json(told)
            tensor = torch.empty(info.shape, dtype=getattr(torch, info.dtype), device=self._device)
            self._broadcast(tensor)
            infos.append(info)
            yield info, tensor
        if told["end"] != version:
            raise WeightsError(f"{self._where}: version {told['end']} came, not {version}")
        if told["checksum"] != Manifest(version, tuple(infos)).checksum:
            raise WeightsError(f"{self._where}: version {version} came incomplete")

    def close(self) -> None:
        """Leave; the others' next broadcast fails."""
        self._group = None

    def _say(self, told: dict[str, Any]) -> None:
        import torch

        data = torch.frombuffer(bytearray(json.dumps(told).encode()), dtype=torch.uint8)
        self._broadcast(torch.tensor([len(data)], dtype=torch.int64, device=self._device))
        self._broadcast(data.to(self._device))

    def _hear(self) -> dict[str, Any]:
        import torch

        length = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._broadcast(length)
        data = torch.zeros(int(length.item()), dtype=torch.uint8, device=self._device)
        self._broadcast(data)
        return json.loads(bytes(data.cpu().numpy()))

    def _broadcast(self, tensor: torch.Tensor) -> None:
        # A tensor of no dimension or no element has no bytes that gloo would take.
        flat = tensor.reshape(-1)
        if not flat.numel():
            return
        try:
            self._group.broadcast(flat, 0).wait()
        except (RuntimeError, AttributeError) as error:
            raise WeightsError(f"{self._where}: broke off: {_line(error)}") from error


@dataclass(frozen=True, slots=True)
class BroadcastSource:
    """One version that is about to be broadcast: it belongs to its process and comes once."""

    group: BroadcastGroup
    version: int

    @property
    def can_be_read_again(self) -> bool:
        return False

    def tensors(self) -> Generator[tuple[TensorInfo, Tensor], None, None]:
        """Each as it comes; waits for rank 0."""
        return self.group.receive(self.version)


def _line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]
