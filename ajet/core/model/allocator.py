"""Memory for large models on a CPU: settings of glibc's allocator, and mapped tensors. Within an
update freed memory is kept for the next tensor of that size. Before an update, after its first pass
and at its end, and before each wave of requests, it is given back to the system: what was freed
lies between tensors that stay, and larger ones could not use it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of malloc.h
KEPT = (1 << 31) - 1
# oneDNN and torch read these variables at their first product. Each keeps compiled code for the
# last 1,024 shapes, 0.3 MB a shape. Nearly every micro-batch has a new length, so a long run would
# keep 0.6 GB. 128 shapes are those of a few micro-batches.
CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
CACHED_SHAPES = 128
LARGE = 1 << 25
"""A model is large from this many weights on."""
# Shared pages, mmap's default, take longer to fault in. Windows has no such flags.
PRIVATE = {} if os.name == "nt" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}


def is_large(model: nn.Module) -> bool:
    return sum(weight.numel() for weight in model.parameters()) >= LARGE


def prepare_memory() -> None:
    """Makes the process keep freed memory for its next tensors (glibc only), and few compiled
    shapes, unless the user's environment says how many."""
    for variable in CACHES:
        os.environ.setdefault(variable, str(CACHED_SHAPES))
    mallopt = _function("mallopt")
    if mallopt is None:
        return
    # By default glibc maps each large tensor and unmaps it when it is freed, so its pages are
    # faulted in and cleared again: a third of the time of an update of 135 million parameters.
    if not mallopt(M_MMAP_THRESHOLD, KEPT):
        mallopt(M_MMAP_THRESHOLD, 1 << 25)  # the most that glibc before 2.35 accepts
    mallopt(M_TRIM_THRESHOLD, KEPT)
    mallopt(M_ARENA_MAX, 1)  # an update in a thread finds the blocks that another thread freed


def release_freed_memory() -> None:
    """Gives all free pages back to the system (glibc only)."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


def _function(name: str) -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def mapped(like: Tensor, num: int) -> Tensor:
    """Returns `num` zeros, at least one, of the dtype of `like`, which is on a CPU: in separately
    mapped memory, which is taken only when it is written, and is all freed with the tensor. In the
    C library's heap, larger tensors could not use what is freed between long-lived ones."""
    import torch

    return torch.frombuffer(mmap.mmap(-1, num * like.itemsize, **PRIVATE), dtype=like.dtype)
