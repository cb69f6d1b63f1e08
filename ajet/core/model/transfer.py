"""Copies between a model's device and the CPU for which the CPU does not wait: a copy from or to
pinned memory is launched like a kernel. Allocating that takes far longer than copying a few
numbers, so what is copied at each step has a buffer.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def uploaded(values: NDArray[Any], device: torch.device) -> Tensor:
    """Returns an array as a tensor on `device`."""
    return _pinned(torch.from_numpy(values), device).to(device, non_blocking=device.type == "cuda")


class UploadBuffer:
    """A tensor on a device, with pinned memory from which it is written."""

    def __init__(self, like: NDArray[Any], device: torch.device) -> None:
        """`like` has the shape and the dtype of what will be written."""
        host = _pinned(torch.from_numpy(np.empty_like(like)), device)
        self._host, self._host_values = host, host.numpy()
        self._tensor = torch.empty_like(host, device=device)
        self._copied = torch.cuda.Event() if device.type == "cuda" else None

    def write(self, values: NDArray[Any]) -> Tensor:
        """Returns the tensor, which has these values for what is launched from now on."""
        # The last copy must have left the pinned memory. A caller that has read something launched
        # after it, such as a step's tokens, does not wait here.
        if self._copied is not None:
            self._copied.synchronize()
        self._host_values[...] = values
        self._tensor.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self._tensor.device))
        return self._tensor


class DownloadBuffer:
    """Pinned memory to which tensors of one shape and dtype are copied."""

    def __init__(self) -> None:
        self._host: Tensor | None = None
        self._copied: torch.cuda.Event | None = None

    def start(self, tensor: Tensor) -> None:
        """Launches the copy of a tensor, over the last one; a tensor on the CPU is not copied."""
        if tensor.device.type != "cuda":
            self._host = tensor.cpu()
            return
        if self._host is None or self._copied is None:
            self._host = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._copied = torch.cuda.Event()
        self._host.copy_(tensor, non_blocking=True)
        self._copied.record(torch.cuda.current_stream(tensor.device))

    def read(self) -> NDArray[Any]:
        """Waits for the copy and returns its values, which the next copy overwrites."""
        assert self._host is not None, "start() comes first"
        if self._copied is not None:
            self._copied.synchronize()
        return self._host.numpy()


def _pinned(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.pin_memory() if device.type == "cuda" else tensor
