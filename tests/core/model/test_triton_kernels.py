"""Triton's kernels have torch's numbers, in Triton's interpreter, and its compiler takes them.

Neither needs a GPU, but both need Triton, which comes with torch for CUDA.
"""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.core.model.triton_interpreter import interpreted_kernels

ROOT = Path(__file__).parents[3]
INTERPRETED = (
    "tests/core/model/test_triton_kernels.py",
    "tests/core/model/test_wide_layer.py",
    "tests/core/update/test_fused_softmax.py",
)
DTYPES = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
MODULE = "ajet.core.model.kernels.triton_kernels"


class Driver:
    """A CUDA driver of a GPU of some capability, for a compiler that launches nothing."""

    def __init__(self, capability: int) -> None:
        target = import_module("triton.backends.compiler").GPUTarget("cuda", capability, 32)
        self.get_current_target = lambda: target
        self.get_current_device = lambda: capability
        self.get_current_stream = lambda device: 0


def close(found, expected, dtype):
    tolerance = DTYPES[dtype]
    assert found.dtype == dtype
    expected = expected.detach()
    largest = float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance * largest)


def random(dtype, *shape):
    """Returns random numbers of the dtype, and the same in float64."""
    x = torch.randn(shape).to(dtype)
    return x, x.double().requires_grad_()


@pytest.fixture
def triton():
    torch.manual_seed(0)
    return interpreted_kernels()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 24), (1, 128), (70, 896), (3, 2048)])
def test_a_norm_has_torchs_numbers(triton, shape, dtype):
    (x, exact), (weight, factor) = random(dtype, *shape), random(dtype, shape[1])
    close(triton.rms_norm(x, weight, 1e-5), F.rms_norm(exact, shape[1:], factor, 1e-5), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_added", [False, True])
@pytest.mark.parametrize("shape", [(5, 24), (35, 40)])  # 1 part and 3, the last of 3 rows
def test_a_norm_has_torchs_gradients(triton, shape, with_added, dtype):
    (x, exact), (weight, factor) = random(dtype, *shape), random(dtype, shape[1])
    (grad, probe), (added, on_top) = random(dtype, *shape), random(dtype, *shape)
    out = F.rms_norm(exact, shape[1:], factor, 1e-5)
    d_exact, d_factor = torch.autograd.grad((out * probe.detach()).sum(), (exact, factor))
    d_x, d_weight = triton.rms_norm_backward(grad, x, weight, 1e-5, added if with_added else None)
    close(d_x, d_exact + on_top if with_added else d_exact, dtype)
    close(d_weight, d_factor, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 7), (5, 2500)])  # one program a row, and three
def test_a_gate_has_torchs_numbers_and_gradients(triton, shape, dtype):
    (gate, a), (up, b), (grad, probe) = (random(dtype, *shape) for _ in range(3))
    expected = F.silu(a) * b
    d_a, d_b = torch.autograd.grad((expected * probe.detach()).sum(), (a, b))
    close(triton.gate(gate, up), expected, dtype)
    product, d_gate, d_up = triton.gate_backward(grad, gate, up)
    assert d_up is grad
    for found, exact in ((product, expected), (d_gate, d_a), (d_up, d_b)):
        close(found, exact, dtype)


def test_a_gate_may_lie_beside_what_it_opens(triton):
    joined = torch.randn(6, 2 * 40)
    gate, up = joined.chunk(2, dim=1)
    torch.testing.assert_close(triton.gate(gate, up), F.silu(gate) * up)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "dim"), [(1, 2), (14, 64), (32, 128), (3, 80)])
def test_a_rotation_is_that_of_complex_numbers_also_of_rows_that_lie_apart(
    triton, heads, dim, dtype
):
    rows = torch.randn(4, heads + 1, dim).to(dtype)
    x, angle = rows[:, :heads], torch.rand(4, 1, dim // 2).double()
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    out = torch.empty(4, heads, dim, dtype=dtype)
    triton.rotate(x, torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1), out)
    turned = torch.complex(*x.double().chunk(2, -1)) * torch.complex(cos.double(), sin.double())
    close(out, torch.cat((turned.real, turned.imag), -1), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 1 / 0.7])
@pytest.mark.parametrize("vocab", [7, 4096, 10_000])  # one block, a whole one, two and a part
def test_a_softmax_has_torchs_sums_and_gradients(triton, vocab, scale, dtype):
    logits, exact = random(dtype, 4, vocab)
    logits, exact = 4 * logits, 4 * exact  # without rounding
    exact.retain_grad()
    logprobs = torch.log_softmax(exact * scale, -1)
    log_sum, entropy = torch.logsumexp(exact * scale, -1), -(logprobs.exp() * logprobs).sum(-1)
    sums = triton.softmax_sums(logits, scale)
    for found, expected in zip(sums, (log_sum, entropy), strict=True):
        close(found, expected, torch.float32)
    d_sum, d_entropy = torch.tensor([1.0, -2.0, 0.5, 0.0]), torch.tensor([0.0, 0.5, -1.0, 2.0])
    (entropy * d_entropy).sum().backward()
    assert exact.grad is not None
    found = logits.clone()
    triton.softmax_backward(found, scale, sums, d_sum, d_entropy * scale)
    close(found, exact.grad - logprobs.exp() * d_sum.unsqueeze(1), dtype)
    without = logits.clone()
    triton.softmax_backward(without, scale, sums, d_sum, None)
    close(without, -logprobs.exp() * d_sum.unsqueeze(1), dtype)


def test_what_is_no_number_is_in_the_sums(triton):
    logits = torch.zeros(3, 5000)
    logits[0, 4500], logits[1, 1] = torch.nan, torch.inf
    log_sum, entropy = triton.softmax_sums(logits, 1.0)
    assert torch.isnan(log_sum).tolist() == torch.isnan(entropy).tolist() == [True, True, False]


def test_all_of_it_holds_in_tritons_interpreter():
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("this is that process")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-k", "triton", *INTERPRETED],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_compiler_takes_them_without_a_gpu(dtype, capability, monkeypatch):
    driver = pytest.importorskip("triton.runtime").driver
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("interpreted")
    module, sizes = import_module(MODULE), {}

    def compiled(kernel, grid, *args, **options):
        found = kernel.warmup(*args, grid=grid, **options)
        sizes.setdefault(found.name, []).append(len(found.asm["cubin"]))

    monkeypatch.setattr(module, "_launch", compiled)
    monkeypatch.setattr(driver, "_active", Driver(capability))
    kernels = module.TritonKernels()
    for width in (896, 5120):  # the second has programs of more warps
        x, weight = torch.zeros(4, width, dtype=dtype), torch.zeros(width, dtype=dtype)
        kernels.rms_norm(x, weight, 1e-6)
        kernels.rms_norm_backward(x, x, weight, 1e-6)
        kernels.rms_norm_backward(x, x, weight, 1e-6, added=x)
    kernels.gate(x, x)
    kernels.gate_backward(x, x, x)
    q, angle = x.view(4, 40, 128), torch.zeros(4, 1, 128, dtype=dtype)
    kernels.rotate(q, angle, angle, q.clone())
    kernels.rotate(q[:, :1], angle, angle, q[:, :1].clone())
    logits, by_row = torch.zeros(4, 151_936, dtype=dtype), torch.zeros(5)[1:]
    kernels.softmax_sums(logits, 1.0)
    kernels.softmax_backward(logits, 1.0, (by_row, by_row), by_row, None)
    kernels.softmax_backward(logits, 1.0, (by_row, by_row), by_row, by_row)
    assert {name: len(each) for name, each in sizes.items()} == {
        "rms_norm_kernel": 2,
        "rms_norm_backward_kernel": 4,
        "gate_kernel": 1,
        "gate_backward_kernel": 1,
        "rotate_kernel": 2,
        "softmax_sums_kernel": 1,
        "softmax_backward_kernel": 2,
    }
    assert all(size > 0 for each in sizes.values() for size in each)
