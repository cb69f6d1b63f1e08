"""Chooses the kernels of a tensor's device: the CPU's compiled ones, or Triton's on CUDA. Each
function returns None where there is no kernel for such a tensor: callers then compute with torch.
"""

from __future__ import annotations

import functools
import subprocess
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

import torch
from loguru import logger
from torch import Tensor

from ajet.core.model.kernels.functions import Kernels, kernels_for

if TYPE_CHECKING:
    from ajet.core.model.kernels.triton_kernels import TritonKernels

CUDA_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
CAPABILITY = (8, 0)
"""The least CUDA compute capability for which Triton's kernels are compiled here."""


class DecodeKernels(Protocol):
    """The functions of triton_decode.py, a module that can be imported only with Triton."""

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


def layer_kernels_for(tensor: Tensor) -> Kernels | TritonKernels | None:
    """Returns the kernels of what is between the products of a layer."""
    return kernels_for(tensor) if tensor.device.type == "cpu" else cuda_kernels_for(tensor)


def cuda_kernels_for(tensor: Tensor) -> TritonKernels | None:
    is_supported = tensor.device.type == "cuda" and tensor.dtype in CUDA_DTYPES
    return _triton_kernels(tensor.device) if is_supported else None


def decode_kernels_for(tensor: Tensor) -> DecodeKernels | None:
    return None if cuda_kernels_for(tensor) is None else decode_kernels()


def decode_kernels() -> DecodeKernels:
    """Returns the kernels of a decode step; Triton must be installed."""
    return cast(DecodeKernels, import_module("ajet.core.model.kernels.triton_decode"))


@functools.cache
def _triton_kernels(device: torch.device) -> TritonKernels | None:
    """Returns Triton's kernels after one of them has run on the device; warns and returns None
    where that fails."""
    if torch.version.hip is not None or torch.cuda.get_device_capability(device) < CAPABILITY:
        return None
    try:
        module = import_module("ajet.core.model.kernels.triton_kernels")
        kernels: TritonKernels = module.TritonKernels()
        kernels.rms_norm(torch.ones(1, 16, device=device), torch.ones(16, device=device), 1e-6)
    except (ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        logger.warning(
            f"{device} will take longer than it could to sample and to train: Triton cannot "
            f"compile here ({error}); it comes with torch for CUDA, and needs a C compiler (gcc) "
            "and Python's headers (python3-dev)"
        )
        return None
    return kernels
