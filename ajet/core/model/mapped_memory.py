"""Separately mapped memory for a tensor on a CPU, outside the C library's heap.

In the heap, long-lived tensors lie between others, whose freed memory larger tensors cannot use.
Mapped pages take memory only when they are written, and are all freed with the tensor.
"""

import mmap
import os

import torch
from torch import Tensor

# Shared pages, mmap's default, take longer to fault in. Windows has no such flags.
PRIVATE = {} if os.name == "nt" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}


def mapped(like: Tensor, num: int) -> Tensor:
    """Returns `num` zeros, at least one, of the dtype of `like`, which is on a CPU."""
    return torch.frombuffer(mmap.mmap(-1, num * like.itemsize, **PRIVATE), dtype=like.dtype)
