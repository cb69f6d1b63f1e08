"""The C library's allocator, told when to keep what tensors free and when to give it back.

    within an update              kept: the next tensor of that size takes it
    before an update, after its   given back: what a rollout, or the pass that made the gradients,
    first pass, and behind it;    has freed lies between what stays, and may not be found again
    behind a stage

glibc maps large tensors anew each time and gives them back to the system when they are freed, so
their pages are faulted in and cleared again: a third of the time of an update of a model of 135
million parameters.

Small models (`is_large`) need neither. Not covered: other C libraries, which are left as they are;
threads that have allocated before `keep_freed_memory`, which keep an arena of their own.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of malloc.h
KEPT = (1 << 31) - 1
LARGE = 1 << 25
"""The weights from which a model's tensors are worth the trouble."""


def is_large(model: nn.Module) -> bool:
    """Tells whether the model has so many weights that its tensors are mapped anew each time."""
    return sum(weight.numel() for weight in model.parameters()) >= LARGE


def keep_freed_memory() -> None:
    """Makes the process keep freed memory for its next tensors; has no effect beside glibc."""
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
