"""A process group of torch.distributed in which rank 0 sends tensors to the others, separate from
the default group. The processes may have different versions of torch, but not of NCCL. This file
imports only torch: vLLM's worker loads it by path (servers/worker_extension/), without the rest of
ajet.
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
"""The environment variable that torch reads when it creates an NCCL group."""


class GroupError(RuntimeError):
    """Raised when the group cannot form, or breaks; the message is one line."""


class BroadcastGroup:
    """One process's membership in a group. Headers use gloo, and so do tensors in CPU memory; on
    GPUs these use nccl, or ipc: processes on one device share a buffer in its memory.

        rank 0        group.send_header({"name": …})    group.broadcast(tensor)
        the others    group.receive_header()            for header, tensor in group.tensors(): …"""

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
        """Joins the group; returns when all `size` processes have joined. Rank 0 passes the `store`
        that they meet at, and creates ipc's buffer of `buffer_bytes`. `gpu` is the number of this
        process's GPU (default: the current one)."""
        import torch
        import torch.distributed.distributed_c10d as c10d
        from torch._C._distributed_c10d import TCPStore

        self._rank = rank
        self._buffer: Tensor | None = None
        self.end: dict[str, Any] | None = None
        """The header that ends the tensors, once it was received."""
        self.where = f"weights by {backend} over {address}:{port}"
        timeout = timedelta(seconds=timeout_s)
        try:
            if store is None:
                store = TCPStore(address, port, size, timeout=timeout, wait_for_workers=False)
            prefixed = c10d.PrefixStore("ajet-weights", store)
            self._group: Any = c10d.ProcessGroupGloo(prefixed, rank, size, timeout)
            self._tensor_group: Any = self._group
            self.device = torch.device("cpu")
            if backend != "gloo" and torch.cuda.is_available():  # ipc also works on a CPU
                self.device = torch.device(
                    "cuda", torch.cuda.current_device() if gpu is None else gpu
                )
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
        """Creates the buffer on rank 0 and opens it on the others; returns when all have it
        open."""
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
        """Sends JSON values to the others; only rank 0 calls this."""
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
        `end` is received. A second call continues where the first one stopped."""
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
        """Copies rank 0's tensor into the given one of every other rank, on the group's device."""
        # gloo accepts neither a tensor without dimensions nor one without elements.
        flat = tensor.reshape(-1)
        if not flat.numel():
            return
        if self._buffer is None:
            self._run(lambda: self._tensor_group.broadcast(flat, 0))
        else:
            self._through(self._buffer, flat)

    def _through(self, buffer: Tensor, flat: Tensor) -> None:
        """Copies a tensor through the buffer, part by part."""
        import torch

        data = flat.view(torch.uint8)
        for start in range(0, len(data), len(buffer)):
            part = data[start : start + len(buffer)]
            shared = buffer[: len(part)]
            if self._rank == 0:
                shared.copy_(part)
                self._finish_copy()
            self._run(self._group.barrier)  # the part is in the buffer
            if self._rank != 0:
                part.copy_(shared)
                self._finish_copy()
            self._run(self._group.barrier)  # all have read it: rank 0 may overwrite it

    def _finish_copy(self) -> None:
        """Waits for the device's copy: a barrier waits only for processes."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _run(self, operation: Callable[[], Any]) -> None:
        try:
            operation().wait()
        except (RuntimeError, AttributeError) as error:
            raise GroupError(f"{self.where}: broke off: {first_line(error)}") from error

    def close(self) -> None:
        """Leaves the group; the next broadcast of the others fails."""
        self._group = self._tensor_group = self._buffer = None


def check_nccl_versions(store: Any, rank: int, size: int, version: str) -> None:
    """Raises ValueError if the processes of a group have different versions of NCCL, with which
    NCCL fails in some of them only."""
    store.set(f"nccl/{rank}", version)
    versions = [store.get(f"nccl/{peer}").decode() for peer in range(size)]
    if len(set(versions)) > 1:
        listing = ", ".join(f"rank {n} has {version}" for n, version in enumerate(versions))
        raise ValueError(
            f"NCCL needs equal versions, and {listing}: install one in all of their "
            "Pythons (pip install --no-deps nvidia-nccl-cu13==…), or send weights through files "
            "(sync_method: checkpoint)"
        )


def nccl_version() -> str:
    """Returns the version of NCCL that this process has loaded. It may differ from the one that
    torch was built with."""
    from torch.cuda import nccl

    try:
        loaded = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:  # NCCL is linked into torch
        return ".".join(map(str, nccl.version()))
    number = ctypes.c_int()
    loaded.ncclGetVersion(ctypes.byref(number))
    return f"{number.value // 10_000}.{number.value // 100 % 100}.{number.value % 100}"


@contextmanager
def nccl_waits() -> Iterator[None]:
    """Makes NCCL groups that are created in the block wait for each operation and raise its errors.
    By default `wait` returns before the bytes have arrived, so that closing a group aborts its last
    broadcast, and the loss of a member makes a thread of torch kill this process."""
    before = os.environ.get(BLOCKING_WAIT)
    os.environ[BLOCKING_WAIT] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[BLOCKING_WAIT]
        else:
            os.environ[BLOCKING_WAIT] = before


def make_buffer(num_bytes: int, device: Any) -> tuple[Tensor, dict[str, Any], int | None]:
    """Creates a buffer that other processes can open. Returns it, a handle in JSON values for them,
    and on a CPU the file descriptor to close after they have opened it."""
    import torch

    if device.type == "cuda":
        buffer = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        # The first value is this process's number of the GPU, which differs in others: its UUID is
        # sent and compared instead.
        _, memory, *rest = buffer.untyped_storage()._share_cuda_()
        handle = to_json([portable_handle(memory), *rest])
        return buffer, {"gpu": gpu_name(device), "handle": handle}, None
    descriptor = os.memfd_create(
        "ajet-weights"
    )  # without a name, so that it is freed with the processes
    os.truncate(descriptor, num_bytes)
    path = f"/proc/{os.getpid()}/fd/{descriptor}"
    return map_file(descriptor, num_bytes), {"path": path, "num_bytes": num_bytes}, descriptor


def open_buffer(handle: dict[str, Any], device: Any) -> Tensor:
    """Opens the buffer that another process has created on the same device."""
    import torch

    if "path" in handle:
        with Path(handle["path"]).open("r+b") as file:
            return map_file(file.fileno(), handle["num_bytes"])
    if device.type != "cuda" or gpu_name(device) != handle["gpu"]:
        raise ValueError(f"the sender is on {handle['gpu']}, the receiver on {device}")
    storage = torch.UntypedStorage._new_shared_cuda(device.index, *from_json(handle["handle"]))
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def map_file(descriptor: int, num_bytes: int) -> Tensor:
    """Maps a file as a tensor of bytes, shared with all processes that map it."""
    import torch

    return torch.frombuffer(mmap(descriptor, num_bytes), dtype=torch.uint8)


def gpu_name(device: Any) -> str:
    """Returns a name of the GPU that is equal in all processes."""
    import torch

    return f"GPU {torch.cuda.get_device_properties(device).uuid}"


def portable_handle(handle: bytes) -> bytes:
    """Returns torch's handle of GPU memory in the form that every version of torch can open.

    torch prefixes the driver's handle with a format version and a type of memory. It cannot open
    the format of a newer torch (2.13 introduced one), but always the bare handle of the driver.
    """
    memory_type = handle[1:2] if len(handle) != IPC_HANDLE_BYTES else b"c"
    if memory_type == b"e":
        raise ValueError(
            "other processes cannot open memory of expandable segments: remove "
            "expandable_segments:True from PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF), or send "
            "weights through files (sync_method: memory)"
        )
    is_plain = memory_type == b"c" and len(handle) == 2 + IPC_HANDLE_BYTES
    return handle[2:] if is_plain else handle


def to_json(handle: list[Any]) -> list[Any]:
    """Returns a CUDA IPC handle (numbers and bytes) in JSON values."""
    return [{"hex": value.hex()} if isinstance(value, bytes) else value for value in handle]


def from_json(handle: list[Any]) -> list[Any]:
    """Returns the handle that `to_json` converted."""
    return [bytes.fromhex(value["hex"]) if isinstance(value, dict) else value for value in handle]


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message."""
    return (str(error) or type(error).__name__).strip().splitlines()[0]


def release_unused_memory() -> None:
    """Frees torch's cache, and memory that other processes had open. A load of weights needs memory
    for a while, and an inference server allocates its KV cache after it from the GPU's free
    memory."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
