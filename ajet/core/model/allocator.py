"""The C library's allocator, told to keep what large tensors free.

glibc maps a block of 32 MB or more anew for each tensor and gives it back to the system when it is
freed, so each tensor's pages are faulted in and cleared again: a third of the time of an update of
a model of 135 million parameters. Kept blocks are used again by the next tensor of their size.

Not covered: other C libraries, which are left as they are.
"""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of malloc.h
KEPT = (1 << 31) - 1


def keep_freed_memory() -> None:
    """Makes the process keep freed memory for its next tensors; has no effect beside glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return
    mallopt(M_MMAP_THRESHOLD, KEPT)
    mallopt(M_TRIM_THRESHOLD, KEPT)
    mallopt(M_ARENA_MAX, 1)  # an update in a thread finds the blocks that another thread freed
