"""Memory of its own for a tensor on a CPU, beside the C library's heap.

    mapped(like, num)    pages that are never written take no memory; all go back with the tensor

In the heap, tensors that stay lie between others that come and go, and what those free is not found
again by larger ones. allocator.py says when the heap gives its free pages back.
"""

import mmap
import os

import torch
from torch import Tensor

# Pages that a forked process would share take longer to fault in as well. Windows has no fork.
PRIVATE = {} if os.name == "nt" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}


def mapped(like: Tensor, num: int) -> Tensor:
    """Returns `num` zeros, at least one, of the dtype of `like`, which is on a CPU."""
    return torch.frombuffer(mmap.mmap(-1, num * like.itemsize, **PRIVATE), dtype=like.dtype)
