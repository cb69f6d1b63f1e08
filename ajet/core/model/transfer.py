"""Numbers on their way between a model's device and the CPU, for which no one waits.

    uploaded(values, device)      an array to the device, in memory of its own
    UploadBuffer                  the next array, in the memory of the last one
    DownloadBuffer                a tensor to the CPU: started now, read later

A copy between ordinary memory and a CUDA GPU waits until the GPU has done all that was launched
before, one from or to memory that is pinned to its place is launched like a kernel. torch keeps
pinned memory for the next copy of its size, and does not hand it out before the last one is done;
to ask for it takes far longer than the copy of a few numbers, so what is copied at each step has a
buffer.
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
    """Holds a tensor on a device, and the place in the CPU's memory from which it is written."""

    def __init__(self, like: NDArray[Any], device: torch.device) -> None:
        """`like` has the shape and the dtype of what will be written."""
        host = _pinned(torch.from_numpy(np.empty_like(like)), device)
        self._host, self._host_values = host, host.numpy()
        self._tensor = torch.empty_like(host, device=device)
        self._copied = torch.cuda.Event() if device.type == "cuda" else None

    def write(self, values: NDArray[Any]) -> Tensor:
        """Returns the tensor, which has these values for what is launched from now on.

        The last copy must have left the CPU's memory before other values are put there. It has if
        anything that was launched after it has been read since, as a step's tokens are; the event
        is for callers that read nothing, who then wait here.
        """
        if self._copied is not None:
            self._copied.synchronize()
        self._host_values[...] = values
        self._tensor.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self._tensor.device))
        return self._tensor


class DownloadBuffer:
    """Holds the place in the CPU's memory that the tensors of one shape and dtype are copied to."""

    def __init__(self) -> None:
        self._host: Tensor | None = None
        self._copied: torch.cuda.Event | None = None

    def start(self, tensor: Tensor) -> None:
        """Launches the copy of a tensor, which takes the place of the last one. Of a tensor in the
        CPU's memory no copy is made."""
        if tensor.device.type != "cuda":
            self._host = tensor.cpu()
            return
        if self._host is None or self._copied is None:
            self._host = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._copied = torch.cuda.Event()
        self._host.copy_(tensor, non_blocking=True)
        self._copied.record(torch.cuda.current_stream(tensor.device))

    def read(self) -> NDArray[Any]:
        """Waits for the copy and returns its values, which the next one overwrites."""
        assert self._host is not None, "start() comes first"
        if self._copied is not None:
            self._copied.synchronize()
        return self._host.numpy()


def _pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns a tensor of the CPU's from which `device` copies without a wait, where it can."""
    return tensor.pin_memory() if device.type == "cuda" else tensor
