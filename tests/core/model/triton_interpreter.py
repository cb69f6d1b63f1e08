"""Triton's kernels on CPU tensors: its interpreter computes them where TRITON_INTERPRET=1 is set
before they are imported. test_triton_kernels.py starts such a process."""

import os
from importlib import import_module
from typing import Any

import pytest


def interpreted_kernels() -> Any:
    """Returns the kernels, or skips the test where they are not interpreted."""
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("only in the process of test_triton_kernels.py")
    return import_module("ajet.core.model.kernels.triton_kernels").TritonKernels()
