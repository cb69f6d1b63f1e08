"""One process's place in a group of torch.distributed over which rank 0 sends tensors.

    rank 0        group.send_header({"name": …})    group.broadcast(tensor)
    the others    group.receive_header()            for header, tensor in group.tensors(): …

The group is separate from the process's default one. gloo moves tensors in CPU memory, nccl those
on a GPU. This file imports torch alone: vLLM's worker loads it by its path
(servers/worker_extension/), where ajet's other packages are not to be found.

Not covered: what the headers mean (broadcast.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

Backend = Literal["gloo", "nccl"]


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
    ) -> None:
        """Joins the group that meets at rank 0's store, which rank 0 passes."""
        import torch
        import torch.distributed.distributed_c10d as c10d
        from torch._C._distributed_c10d import TCPStore

        self.end: dict[str, Any] | None = None
        """The header that ends the tensors, once it has come."""
        self.where = f"weights by {backend} over {address}:{port}"
        timeout = timedelta(seconds=timeout_s)
        try:
            if store is None:
                store = TCPStore(address, port, size, timeout=timeout, wait_for_workers=False)
            prefixed = c10d.PrefixStore("ajet-weights", store)
            if backend == "nccl":
                self.device = torch.device("cuda", torch.cuda.current_device())
                options = c10d.ProcessGroupNCCL.Options()
                options._timeout = timeout
                self._group: Any = c10d.ProcessGroupNCCL(prefixed, rank, size, options)
            else:
                self.device = torch.device("cpu")
                self._group = c10d.ProcessGroupGloo(prefixed, rank, size, timeout)
        except (RuntimeError, ValueError) as error:
            raise GroupError(f"{self.where}: {first_line(error)}") from error

    def send_header(self, header: dict[str, Any]) -> None:
        """Sends JSON values to all others; only rank 0 calls it."""
        import torch

        data = torch.frombuffer(bytearray(json.dumps(header).encode()), dtype=torch.uint8)
        self.broadcast(torch.tensor([len(data)], dtype=torch.int64, device=self.device))
        self.broadcast(data.to(self.device))

    def receive_header(self) -> dict[str, Any]:
        """Returns the next JSON values that rank 0 sends."""
        import torch

        length = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.broadcast(length)
        data = torch.zeros(int(length.item()), dtype=torch.uint8, device=self.device)
        self.broadcast(data)
        return json.loads(bytes(data.cpu().numpy()))

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
        try:
            self._group.broadcast(flat, 0).wait()
        except (RuntimeError, AttributeError) as error:
            raise GroupError(f"{self.where}: broke off: {first_line(error)}") from error

    def close(self) -> None:
        """Leaves the group; the others' next broadcast fails."""
        self._group = None


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message."""
    return (str(error) or type(error).__name__).strip().splitlines()[0]
