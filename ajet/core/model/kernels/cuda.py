"""The kernels for CUDA GPUs, which Triton compiles where they run (triton_decode.py)."""

import functools
import os
import shutil
import sysconfig
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, cast

import torch
from loguru import logger
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MIN_CAPABILITY = (8, 0)
"""The first GPUs that multiply bfloat16."""


class DecodeKernels(Protocol):
    """The functions of triton_decode.py."""

    def num_parts(self, rows: int, kv_heads: int, num_keys: int) -> int: ...

    def attend(
        self,
        qkv: tuple[Tensor, Tensor, Tensor],
        own: tuple[Tensor, Tensor],
        shared: tuple[Tensor, Tensor],
        table_R3: Tensor,
        column_1: Tensor,
        parts: int,
    ) -> Tensor: ...

    def draw(self, logits: Tensor, scales: Tensor, u: Tensor, greedy: Tensor) -> Tensor: ...


def decode_kernels_for(tensor: Tensor) -> DecodeKernels | None:
    """Returns the kernels of a decode step if they compute for such tensors and can be compiled
    here."""
    is_supported = (
        tensor.is_cuda
        and torch.version.cuda is not None
        and tensor.dtype in DTYPES
        and torch.cuda.get_device_capability(tensor.device) >= MIN_CAPABILITY
    )
    return decode_kernels() if is_supported and can_compile() else None


def decode_kernels() -> DecodeKernels:
    """Returns the kernels of a decode step; Triton must be installed."""
    return cast(DecodeKernels, import_module("ajet.core.model.kernels.triton_decode"))


@functools.cache
def can_compile() -> bool:
    """Tells whether Triton is installed with what it calls a kernel by: code in C, which it
    compiles against Python's headers. Where something lacks, that is a warning."""
    compilers = (os.environ.get("CC"), "gcc", "clang")
    if find_spec("triton") is None:
        lacks = "the package triton is not installed"
    elif not any(shutil.which(each) for each in compilers if each):
        lacks = "no C compiler is installed; gcc is one"
    elif not Path(sysconfig.get_path("include", "posix_prefix"), "Python.h").exists():
        lacks = "Python's headers are not installed (python3-dev)"
    else:
        return True
    logger.warning(f"this GPU will take longer than it could to sample: {lacks}")
    return False
