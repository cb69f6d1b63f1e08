"""Chooses the kernels of a tensor's device: the CPU's compiled ones, or Triton's on CUDA.

    layer_kernels_for(x)     what stands between the products of a layer     CPU, CUDA
    cuda_kernels_for(x)      that, and the softmax of logits by slices       CUDA
    decode_kernels_for(x)    attention of a decode step, and the draw        CUDA

None where there are none for such a tensor: callers compute with torch then. What else the CPU has
(attention, a draw, a weight's gradient) is found by functions.py alone.
"""

import functools
import subprocess
from importlib import import_module
from typing import Protocol, cast

import torch
from loguru import logger
from torch import Tensor

from ajet.core.model.kernels.functions import kernels_for

CUDA_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
CAPABILITY = (8, 0)
"""The least CUDA compute capability that Triton's kernels are compiled for here."""


class LayerKernels(Protocol):
    """Computes what stands between the products of a layer; see functions.py."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def rms_norm_backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, eps: float, added: Tensor | None = None
    ) -> tuple[Tensor, Tensor]: ...

    def gate(self, gate: Tensor, up: Tensor) -> Tensor: ...

    def gate_backward(
        self, grad: Tensor, gate: Tensor, up: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def rotate(self, x: Tensor, cos: Tensor, signed_sin: Tensor, out: Tensor) -> None: ...


class CudaKernels(LayerKernels, Protocol):
    """Computes the softmax of logits, too; see triton_kernels.py."""

    def softmax_sums(self, logits: Tensor, scale: float) -> tuple[Tensor, Tensor]: ...

    def softmax_backward(
        self,
        logits: Tensor,
        scale: float,
        sums: tuple[Tensor, Tensor],
        d_sum: Tensor,
        d_entropy: Tensor | None,
    ) -> None: ...


class DecodeKernels(Protocol):
    """The functions of triton_decode.py."""

    def num_parts(self, rows: int, kv_heads: int, num_keys: int) -> int: ...

    def attend(
        self,
        qkv: tuple[Tensor, Tensor, Tensor],
        row_kv: tuple[Tensor, Tensor],
        shared: tuple[Tensor, Tensor],
        table_R3: Tensor,
        column_1: Tensor,
        num_parts: int,
    ) -> Tensor: ...

    def draw(self, logits: Tensor, scales: Tensor, u: Tensor, greedy: Tensor) -> Tensor: ...


def layer_kernels_for(tensor: Tensor) -> LayerKernels | None:
    """Returns the kernels for layers of such tensors."""
    return kernels_for(tensor) if tensor.device.type == "cpu" else cuda_kernels_for(tensor)


def cuda_kernels_for(tensor: Tensor) -> CudaKernels | None:
    """Returns Triton's kernels, if they compute for such tensors and run on their device."""
    is_supported = tensor.device.type == "cuda" and tensor.dtype in CUDA_DTYPES
    return _triton_kernels(tensor.device) if is_supported else None


def decode_kernels_for(tensor: Tensor) -> DecodeKernels | None:
    """Returns Triton's kernels of a decode step, as `cuda_kernels_for` does."""
    return None if cuda_kernels_for(tensor) is None else decode_kernels()


def decode_kernels() -> DecodeKernels:
    """Returns the kernels of a decode step; Triton must be installed."""
    return cast(DecodeKernels, import_module("ajet.core.model.kernels.triton_decode"))


@functools.cache
def _triton_kernels(device: torch.device) -> CudaKernels | None:
    """Returns Triton's kernels after one of them has run on the device, or None where that is not
    possible, which is a warning."""
    if torch.version.hip is not None or torch.cuda.get_device_capability(device) < CAPABILITY:
        return None
    try:
        module = import_module("ajet.core.model.kernels.triton_kernels")
        kernels = cast(CudaKernels, module.TritonKernels())
        kernels.rms_norm(torch.ones(1, 16, device=device), torch.ones(16, device=device), 1e-6)
    except (ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        logger.warning(
            f"{device} will take longer than it could to sample and to train: Triton cannot "
            f"compile here ({error}); it comes with torch for CUDA, and needs a C compiler (gcc) "
            "and Python's headers (python3-dev)"
        )
        return None
    return kernels
