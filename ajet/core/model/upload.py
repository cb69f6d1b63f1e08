"""Numbers on their way to a model's device, for which no one waits.

A copy from ordinary memory to a CUDA GPU waits until the GPU has done all that was launched before,
one from memory that is pinned to its place is launched like a kernel. torch keeps pinned memory for
the next copy of its size, and does not hand it out before the last one is done.
"""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns a tensor of the CPU's from which `device` copies without a wait, where it can."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


def uploaded(values: NDArray[Any], device: torch.device) -> Tensor:
    """Returns an array as a tensor on `device`."""
    return pinned(torch.from_numpy(values), device).to(device, non_blocking=device.type == "cuda")
