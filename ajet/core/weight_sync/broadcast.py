"""Weight sync by a broadcast of torch.distributed: rank 0 sends, every other rank receives.

    trainer    sender.snapshot(version, tensors)      a copy in the CPU's memory
               receivers = sender.receivers(version, 3)   one for each engine, sent to it
               sender.send()                          header, tensor, header, tensor, … end
    replica    load_weights(model, receiver)              joins, receives, leaves

The copy can be sent several times: to all engines, and later to one that replaces a dead one. Each
broadcast has a group of its own, separate from the trainer's (a process has one default group).
gloo moves tensors in CPU memory, nccl those on a GPU. Each header has name, type, shape and
checksum; the last one has the number of tensors. A receiver that finds a damaged tensor receives
the rest before it fails, so that the others are not left waiting.

Not covered: a receiver that dies. The others' broadcast then fails or ends with the group's
timeout, and the router begins another (core/inference/router.py).
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from ajet.core.rendezvous import join, listen
from ajet.core.weight_sync.manifest import Manifest, SyncReport, TensorInfo, WeightsError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Backend = Literal["gloo", "nccl"]
TIMEOUT_S = 120.0


class BroadcastGroup:
    """Represents one process's membership in a broadcast group.

    The constructor returns when all `size` processes have joined.
    """

    def __init__(
        self,
        address: str,
        port: int,
        *,
        rank: int,
        size: int,
        backend: Backend = "gloo",
        timeout_s: float = TIMEOUT_S,
        store: Any = None,
    ) -> None:
        """Joins the group; rank 0 passes the `store` that `open_store` made."""
        import torch
        import torch.distributed.distributed_c10d as c10d

        timeout = timedelta(seconds=timeout_s)
        self._where = f"weights by {backend} over {address}:{port}"
        try:
            if store is None:
                store = join(address, port, size, timeout_s)
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
        """Sends the tensors to all receivers, one at a time; only rank 0 calls it."""
        import time

        started = time.perf_counter()
        assert self.rank == 0
        infos = []
        for name, tensor in tensors:
            moved = tensor.detach().to(self._device).contiguous()
            infos.append(TensorInfo.of(name, moved))
            self._send_header(infos[-1].to_json())
            self._broadcast(moved)
        manifest = Manifest(version, tuple(infos))
        self._send_header({"end": version, "checksum": manifest.checksum, "count": len(infos)})
        seconds = time.perf_counter() - started
        return SyncReport(version, seconds, manifest.num_bytes, manifest.checksum)

    def receive(self, version: int) -> Generator[tuple[TensorInfo, Tensor], None, None]:
        """Yields the tensors that rank 0 sends, each in new memory."""
        import torch

        infos: list[TensorInfo] = []
        while "end" not in (header := self._receive_header()):
            info = TensorInfo.from_json(header)
            tensor = torch.empty(info.shape, dtype=getattr(torch, info.dtype), device=self._device)
            self._broadcast(tensor)
            infos.append(info)
            yield info, tensor
        if header["end"] != version:
            raise WeightsError(f"{self._where}: version {header['end']} came, not {version}")
        if header["checksum"] != Manifest(version, tuple(infos)).checksum:
            raise WeightsError(f"{self._where}: version {version} came incomplete")

    def close(self) -> None:
        """Leaves the group; the others' next broadcast fails."""
        self._group = None

    def _send_header(self, header: dict[str, Any]) -> None:
        import torch

        data = torch.frombuffer(bytearray(json.dumps(header).encode()), dtype=torch.uint8)
        self._broadcast(torch.tensor([len(data)], dtype=torch.int64, device=self._device))
        self._broadcast(data.to(self._device))

    def _receive_header(self) -> dict[str, Any]:
        import torch

        length = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._broadcast(length)
        data = torch.zeros(int(length.item()), dtype=torch.uint8, device=self._device)
        self._broadcast(data)
        return json.loads(bytes(data.cpu().numpy()))

    def _broadcast(self, tensor: torch.Tensor) -> None:
        # gloo takes neither a tensor without dimensions nor one without elements.
        flat = tensor.reshape(-1)
        if not flat.numel():
            return
        try:
            self._group.broadcast(flat, 0).wait()
        except (RuntimeError, AttributeError) as error:
            raise WeightsError(f"{self._where}: broke off: {_line(error)}") from error


@dataclass(frozen=True, slots=True)
class BroadcastReceiver:
    """Describes one receiver of one version's broadcast; it is cheap to send to another process."""

    address: str
    port: int
    rank: int
    size: int
    version: int
    backend: Backend = "gloo"
    timeout_s: float = TIMEOUT_S

    @property
    def can_be_read_again(self) -> bool:
        return False

    def tensors(self) -> Generator[tuple[TensorInfo, Tensor], None, None]:
        """Joins the group, waits for all its members, and yields the tensors as they come."""
        group = BroadcastGroup(
            self.address,
            self.port,
            rank=self.rank,
            size=self.size,
            backend=self.backend,
            timeout_s=self.timeout_s,
        )
        try:
            yield from group.receive(self.version)
        finally:
            group.close()


class BroadcastSender:
    """Acts as rank 0 of every broadcast, in the process that has the weights."""

    def __init__(
        self, address: str, *, backend: Backend = "gloo", timeout_s: float = TIMEOUT_S
    ) -> None:
        """Takes the `address` at which receivers reach this machine."""
        self._backend: Backend = backend
        self._address, self._timeout_s = address, timeout_s
        self._version: int | None = None
        self._copy: dict[str, Tensor] = {}
        self._pending: tuple[Any, int] | None = None

    def snapshot(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Copies the weights to CPU memory, so that the trainer can go on changing them."""
        self._copy = {name: t.detach().to("cpu", copy=True) for name, t in tensors}
        self._version = version

    def receivers(self, version: int, number: int) -> list[BroadcastReceiver]:
        """Returns `number` receivers, which may begin to receive before `send` is called."""
        if version != self._version:
            raise WeightsError(
                f"weights of version {version} cannot be had again: the trainer has {self._version}"
            )
        size = number + 1
        store = open_store(self._address, size, self._timeout_s)
        self._pending = store, size
        where = (self._address, store.port)
        return [
            BroadcastReceiver(*where, rank, size, version, self._backend, self._timeout_s)
            for rank in range(1, size)
        ]

    def send(self) -> SyncReport:
        """Sends the copy to the receivers that were made last."""
        assert self._pending is not None and self._version is not None
        (store, size), self._pending = self._pending, None
        group = BroadcastGroup(
            self._address,
            store.port,
            rank=0,
            size=size,
            backend=self._backend,
            timeout_s=self._timeout_s,
            store=store,
        )
        try:
            return group.send(self._version, self._copy.items())
        finally:
            group.close()


def open_store(address: str, size: int, timeout_s: float) -> Any:
    """Opens the store through which a group of `size` processes meets, on a free port."""
    try:
        return listen(address, 0, size, timeout_s)
    except (OSError, RuntimeError, ValueError) as error:
        raise WeightsError(f"weights by broadcast from {address}: {_line(error)}") from error


def _line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]
