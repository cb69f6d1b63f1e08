"""Where the kernels for CUDA GPUs are used, and what is said where they cannot be compiled."""

import torch
from loguru import logger

from ajet.core.model.kernels.cuda import can_compile, decode_kernels_for


def test_nothing_on_a_cpu_asks_for_triton():
    assert decode_kernels_for(torch.zeros(2, dtype=torch.bfloat16)) is None


def test_a_machine_that_cannot_compile_says_what_it_lacks(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    lines = []
    sink = logger.add(lines.append, format="{level} {message}")
    try:
        assert not can_compile.__wrapped__()
    finally:
        logger.remove(sink)
    [line] = lines
    assert line.startswith("WARNING this GPU will take longer than it could to sample: ")
    assert "triton is not installed" in line or "no C compiler is installed" in line
