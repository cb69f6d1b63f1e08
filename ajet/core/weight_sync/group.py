"""One process's place in a group of torch.distributed over which rank 0 sends tensors.

    rank 0        group.send_header({"name": …})    group.broadcast(tensor)
    the others    group.receive_header()            for header, tensor in group.tensors(): …

The group is separate from the process's default one. Headers travel over gloo. Tensors do too if
they are in CPU memory, and over nccl on GPUs. ipc is for processes on one device: tensors go
through a buffer in the device's memory that all of them have open.

    rank 0        copies a part of the tensor in ─ barrier ─────────────────── barrier ─ …
    the others    ───────────────────────────────── barrier ─ copy it out ─ barrier ─ …

The processes may have different versions of torch: an inference server brings its own. Handles are
sent in the one form that all versions read, and different versions of NCCL are refused by name.

This file imports torch alone: vLLM's worker loads it by its path (servers/worker_extension/), where
ajet's other packages are not to be found.

Not covered: what the headers mean (broadcast.py).
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

Backend = Literal["gloo", "nccl", "ipc"]
BUFFER_BYTES = 1 << 28
IPC_HANDLE_BYTES = 64
"""The size of a `cudaIpcMemHandle_t`."""
BLOCKING_WAIT = "TORCH_NCCL_BLOCKING_WAIT"
"""The variable that torch reads when it makes a group of NCCL."""


class GroupError(RuntimeError):
    """Says in one line that the group did not form, or broke."""


class BroadcastGroup:
    """Represents one process's membership in a group; the constructor returns when all `size`
    processes have joined."""

    def __init__(
        self,
        address: str,
        port: int,
        *,
        rank: int,
        size: int,
        backend: Backend,
        timeout_s: float,
        store: Any = None,
        gpu: int | None = None,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        """Joins the group that meets at rank 0's store, which rank 0 passes. It makes the buffer of
        ipc, of `buffer_bytes`. `gpu` is the number of this process's GPU, if not its current one.
        """
        import torch
        import torch.distributed.distributed_c10d as c10d
        from torch._C._distributed_c10d import TCPStore

        self._rank = rank
        self._buffer: Tensor | None = None
        self.end: dict[str, Any] | None = None
        """The header that ends the tensors, once it has come."""
        self.where = f"weights by {backend} over {address}:{port}"
        timeout = timedelta(seconds=timeout_s)
        try:
            if store is None:
                store = TCPStore(address, port, size, timeout=timeout, wait_for_workers=False)
            prefixed = c10d.PrefixStore("ajet-weights", store)
            self._group: Any = c10d.ProcessGroupGloo(prefixed, rank, size, timeout)
            self._tensor_group: Any = self._group
            self.device = torch.device("cpu") if backend == "gloo" else own_device(gpu)
            if backend == "nccl":
                check_nccl_versions(prefixed, rank, size, nccl_version())
                options = c10d.ProcessGroupNCCL.Options()
                options._timeout = timeout
                with nccl_waits():
                    self._tensor_group = c10d.ProcessGroupNCCL(prefixed, rank, size, options)
            if backend == "ipc":
                self._share_buffer(buffer_bytes)
        except (OSError, RuntimeError, ValueError) as error:
            raise GroupError(f"{self.where}: {first_line(error)}") from error

    def _share_buffer(self, num_bytes: int) -> None:
        """Makes the buffer on rank 0 and opens it on the others; all have it open at the end."""
        if self._rank == 0:
            self._buffer, handle, descriptor = make_buffer(num_bytes, self.device)
            self.send_header(handle)
        else:
            descriptor = None
            self._buffer = open_buffer(self.receive_header(), self.device)
        self._group.barrier().wait()
        if descriptor is not None:
            os.close(descriptor)

    def send_header(self, header: dict[str, Any]) -> None:
        """Sends JSON values to all others; only rank 0 calls it."""
        import torch

        data = torch.frombuffer(bytearray(json.dumps(header).encode()), dtype=torch.uint8)
        length = torch.tensor([len(data)], dtype=torch.int64)
        self._run(lambda: self._group.broadcast(length, 0))
        self._run(lambda: self._group.broadcast(data, 0))

    def receive_header(self) -> dict[str, Any]:
        """Returns the next JSON values that rank 0 sends."""
        import torch

        length = torch.zeros(1, dtype=torch.int64)
        self._run(lambda: self._group.broadcast(length, 0))
        data = torch.zeros(int(length.item()), dtype=torch.uint8)
        self._run(lambda: self._group.broadcast(data, 0))
        return json.loads(bytes(data.numpy()))

    def tensors(self) -> Iterator[tuple[dict[str, Any], Tensor]]:
        """Yields the header and the content of each tensor that rank 0 sends, in new memory, until
        `end` has come; a second call goes on where the first one was left."""
        import torch

        while self.end is None:
            header = self.receive_header()
            if "end" in header:
                self.end = header
                return
            dtype = getattr(torch, header["dtype"])
            tensor = torch.empty(header["shape"], dtype=dtype, device=self.device)
            self.broadcast(tensor)
            yield header, tensor

    def broadcast(self, tensor: Tensor) -> None:
        """Sends rank 0's tensor, in this group's device memory, into that of every other rank."""
        # gloo takes neither a tensor without dimensions nor one without elements.
        flat = tensor.reshape(-1)
        if not flat.numel():
            return
        if self._buffer is None:
            self._run(lambda: self._tensor_group.broadcast(flat, 0))
        else:
            self._through(self._buffer, flat)

    def _through(self, buffer: Tensor, flat: Tensor) -> None:
        """Moves a tensor through the buffer in parts. The second barrier of each keeps rank 0 from
        writing the next part over it."""
        import torch

        data = flat.view(torch.uint8)
        for start in range(0, len(data), len(buffer)):
            part = data[start : start + len(buffer)]
            shared = buffer[: len(part)]
            if self._rank == 0:
                shared.copy_(part)
                self._finish_copy()
            self._run(self._group.barrier)
            if self._rank != 0:
                part.copy_(shared)
                self._finish_copy()
            self._run(self._group.barrier)

    def _finish_copy(self) -> None:
        """Waits until the device has copied: a barrier waits for processes alone."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _run(self, operation: Callable[[], Any]) -> None:
        try:
            operation().wait()
        except (RuntimeError, AttributeError) as error:
            raise GroupError(f"{self.where}: broke off: {first_line(error)}") from error

    def close(self) -> None:
        """Leaves the group; the others' next broadcast fails."""
        self._group = self._tensor_group = self._buffer = None


def check_nccl_versions(store: Any, rank: int, size: int, version: str) -> None:
    """Compares the versions of NCCL of all processes of a group, which NCCL itself does by failing
    on some of them."""
    store.set(f"nccl/{rank}", version)
    versions = [store.get(f"nccl/{peer}").decode() for peer in range(size)]
    if len(set(versions)) > 1:
        listing = ", ".join(f"rank {each} has {version}" for each, version in enumerate(versions))
        raise ValueError(
            f"NCCL works between equal versions alone, and {listing}: install one in all of their "
            "Pythons (pip install --no-deps nvidia-nccl-cu13==…), or send weights through files "
            "(sync_method: checkpoint)"
        )


def nccl_version() -> str:
    """Returns the version of the NCCL that this process has loaded, which need not be the one that
    its torch was built with."""
    from torch.cuda import nccl

    try:
        loaded = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:  # this torch has NCCL within it
        return ".".join(map(str, nccl.version()))
    number = ctypes.c_int()
    loaded.ncclGetVersion(ctypes.byref(number))
    return f"{number.value // 10_000}.{number.value // 100 % 100}.{number.value % 100}"


@contextmanager
def nccl_waits() -> Iterator[None]:
    """Has the groups of NCCL that are made in the block wait for each operation and raise what
    fails. By default `wait` returns before the bytes are there, so that a group which is closed
    then aborts its last broadcast, and a member that is lost ends this whole process, by a thread
    of torch's."""
    before = os.environ.get(BLOCKING_WAIT)
    os.environ[BLOCKING_WAIT] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[BLOCKING_WAIT]
        else:
            os.environ[BLOCKING_WAIT] = before


def own_device(gpu: int | None = None) -> Any:
    """Returns this process's GPU of this number, or its current one; the CPU if it has none."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device() if gpu is None else gpu)
    return torch.device("cpu")


def make_buffer(num_bytes: int, device: Any) -> tuple[Tensor, dict[str, Any], int | None]:
    """Makes a buffer that other processes can open. Returns it, its handle for them in JSON values,
    and on a CPU the file descriptor to close when they have opened it."""
    import torch

    if device.type == "cuda":
        buffer = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        # The first value is the number that this process gives the GPU; others may number it
        # otherwise, so its own name is compared.
        _, memory, *rest = buffer.untyped_storage()._share_cuda_()
        handle = to_json([portable_handle(memory), *rest])
        return buffer, {"gpu": gpu_name(device), "handle": handle}, None
    descriptor = os.memfd_create("ajet-weights")  # has no name that could outlive the processes
    os.truncate(descriptor, num_bytes)
    path = f"/proc/{os.getpid()}/fd/{descriptor}"
    return map_file(descriptor, num_bytes), {"path": path, "num_bytes": num_bytes}, descriptor


def open_buffer(handle: dict[str, Any], device: Any) -> Tensor:
    """Opens the buffer that another process has made on the same device."""
    import torch

    if "path" in handle:
        with Path(handle["path"]).open("r+b") as file:
            return map_file(file.fileno(), handle["num_bytes"])
    if device.type != "cuda" or gpu_name(device) != handle["gpu"]:
        raise ValueError(f"the sender is on {handle['gpu']}, the receiver on {device}")
    storage = torch.UntypedStorage._new_shared_cuda(device.index, *from_json(handle["handle"]))
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def map_file(descriptor: int, num_bytes: int) -> Tensor:
    """Returns a file in memory as a tensor of bytes, shared with all that map it."""
    import torch

    return torch.frombuffer(mmap(descriptor, num_bytes), dtype=torch.uint8)


def gpu_name(device: Any) -> str:
    """Returns a name that a GPU has in every process."""
    import torch

    return f"GPU {torch.cuda.get_device_properties(device).uuid}"


def portable_handle(handle: bytes) -> bytes:
    """Returns torch's handle of a GPU's memory in the form that every version of torch opens.

    torch writes its own version of the form, the kind of memory, and the driver's handle. It opens
    no form of a newer torch (2.13 began another one), and a bare handle of the driver always.
    """
    memory_type = handle[1:2] if len(handle) != IPC_HANDLE_BYTES else b"c"
    if memory_type == b"e":
        raise ValueError(
            "memory of expandable segments is not opened by other processes: take "
            "expandable_segments:True out of PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF), or send "
            "weights through files (sync_method: memory)"
        )
    is_plain = memory_type == b"c" and len(handle) == 2 + IPC_HANDLE_BYTES
    return handle[2:] if is_plain else handle


def to_json(handle: list[Any]) -> list[Any]:
    """Returns a handle of CUDA IPC, numbers and bytes, in JSON values."""
    return [{"hex": value.hex()} if isinstance(value, bytes) else value for value in handle]


def from_json(handle: list[Any]) -> list[Any]:
    """Returns the handle of `to_json`."""
    return [bytes.fromhex(value["hex"]) if isinstance(value, dict) else value for value in handle]


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message."""
    return (str(error) or type(error).__name__).strip().splitlines()[0]
