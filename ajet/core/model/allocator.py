"""What a process keeps beside the tensors of a large model on a CPU.

The C library's allocator is told when to keep what tensors free and when to give it back:

    within an update              kept: the next tensor of that size takes it
    before an update, after its   given back: what a rollout, or the pass that made the gradients,
    first pass, and behind it;    has freed lies between what stays, and may not be found again
    before each wave of requests;
    behind a stage

glibc maps large tensors anew each time and gives them back to the system when they are freed, so
their pages are faulted in and cleared again: a third of the time of an update of a model of 135
million parameters.

torch and oneDNN each keep what they have compiled for the last 1,024 shapes of a product, 0.3 MB a
shape. Nearly every micro-batch has a length of its own, so a long run would keep 0.6 GB of it;
`CACHED_SHAPES` are those of a few micro-batches.

Small models (`is_large`) need none of this. Not covered: other C libraries, which are left as they
are; threads that have allocated before `prepare_memory`, which keep an arena of their own.
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
CACHED_SHAPES = 128
CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""The variables that oneDNN and torch read at their first product."""
LARGE = 1 << 25
"""The weights from which a model's tensors are worth the trouble."""


def is_large(model: nn.Module) -> bool:
    """Tells whether the model has so many weights that its tensors are mapped anew each time."""
    return sum(weight.numel() for weight in model.parameters()) >= LARGE


def prepare_memory() -> None:
    """Makes the process keep freed memory for its next tensors, which has no effect beside glibc,
    and few compiled shapes, unless the user's environment says how many."""
    for variable in CACHES:
        os.environ.setdefault(variable, str(CACHED_SHAPES))
    mallopt = _function("mallopt")
    if mallopt is None:
        return
    if not mallopt(M_MMAP_THRESHOLD, KEPT):  # glibc before 2.35 takes no more than this:
        mallopt(M_MMAP_THRESHOLD, 1 << 25)
    mallopt(M_TRIM_THRESHOLD, KEPT)
    mallopt(M_ARENA_MAX, 1)  # an update in a thread finds the blocks that another thread freed


def release_freed_memory() -> None:
    """Gives all pages that are free back to the system; has no effect beside glibc."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


def _function(name: str) -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
