"""Settings of glibc's allocator for large models on a CPU; other C libraries are not changed.

Within an update freed memory is kept for the next tensor of that size. Before an update, after its
first pass and at its end, and before each wave of requests, it is given back to the system: what
was freed lies between tensors that stay, and larger ones could not use it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of malloc.h
KEPT = (1 << 31) - 1
# oneDNN and torch read these variables at their first product. Each keeps compiled code for the
# last 1,024 shapes, 0.3 MB a shape. Nearly every micro-batch has a new length, so a long run would
# keep 0.6 GB. 128 shapes are those of a few micro-batches.
CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
CACHED_SHAPES = 128
LARGE = 1 << 25
"""A model is large from this many weights on."""


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
