"""Moves tensors between the shards of several ranks and rank 0, one tensor at a time.

    gather_tensors(sharded, rank)              rank 0: whole tensors in CPU memory; the others: none
    scatter_tensors(whole, described, like)    each rank: its parts of rank 0's whole tensors

All ranks call them together. Not covered: files (checkpoint.py); ranks that share a folder, each of
which reads and writes its own shards (shard_files.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ajet.core.update.shard_files import names_in, require_shapes
from ajet.core.update.shards import copy_tensor, full_tensor


@dataclass(frozen=True, slots=True)
class WholeTensor:
    """Describes a tensor that rank 0 has, for the ranks that do not have it."""

    shape: torch.Size
    dtype: torch.dtype


def gather_tensors(tensors: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """Returns whole tensors in CPU memory on rank 0, and none on the others."""
    gathered: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        whole = full_tensor(tensor.detach())
        if rank == 0:
            gathered[name] = whole.cpu().contiguous()
    return gathered


def scatter_tensors(
    whole: Mapping[str, Tensor], described: Mapping[str, WholeTensor], like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Returns tensors that are sharded as those of `like`, with rank 0's content. `whole` is empty
    on other ranks; `described` is the same on all. Names are treated as in `read_shards`."""
    names = names_in(described, like)
    require_shapes({n: like[n].shape for n in names}, {n: described[n].shape for n in names})
    scattered = {}
    for name in names:
        tensor = whole.get(name)
        if tensor is None:
            tensor = torch.empty(described[name].shape, dtype=described[name].dtype)
        dist.broadcast(tensor, 0)
        scattered[name] = torch.empty_like(like[name])
        copy_tensor(scattered[name], tensor)
    return scattered
