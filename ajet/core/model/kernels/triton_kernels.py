"""Triton's kernels for CUDA: what is between the products of a layer, and the softmax of logits.
Each reads its inputs and writes its results once, computes in float32 and rounds once. Shapes of a
model are constants of a kernel, the number of rows is not. A row's numbers do not depend on other
rows, except the gradient of a norm's weight, whose order of sums depends only on their number.
Import this through devices.py, which checks that Triton is there.
"""

# pyright: reportInvalidTypeForm=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

# The work of one program. Fixed: tuning would take time at the start of a run.
TILE = 2048  # numbers of `rms_norm`: several rows, if they are short
PART = 16  # rows of `rms_norm_backward`: a part of the sum over all rows
COLUMNS = 1024  # numbers of `gate`, in one row
FLAT = 2048  # numbers of `gate_backward`
PAIRS = 1024  # pairs of numbers of `rotate`, at most, in one row
VOCAB = 4096  # logits of the softmax at a time, in one row


@triton.jit(do_not_specialize=["rows"])
def rms_norm_kernel(
    x, weight, out, rows, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    """Writes ROWS rows of ``x * rsqrt(mean(x^2) + eps) * weight``."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    at, mask = row * SIZE + column, (row < rows) & (column < SIZE)
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    factor = tl.load(weight + column, mask=column < SIZE, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=1, keep_dims=True) / SIZE + eps)
    tl.store(out + at, (value * scale * factor).to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def rms_norm_backward_kernel(
    grad,
    x,
    weight,
    added,
    d_x,
    sums,
    rows,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_ADDED: tl.constexpr,
):
    """Writes the gradient of ROWS rows of x, and their part of the sum that is the weight's."""
    column = tl.arange(0, BLOCK)
    factor = tl.load(weight + column, mask=column < SIZE, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    first = tl.program_id(0).to(tl.int64) * ROWS
    for index in range(0, ROWS):
        at = (first + index) * SIZE + column
        mask = (column < SIZE) & (first + index < rows)
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        d_out = tl.load(grad + at, mask=mask, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(value * value, axis=0) / SIZE + eps)
        normed = value * scale
        total += d_out * normed
        d_normed = d_out * factor
        along = tl.sum(d_normed * normed, axis=0) / SIZE
        result = (d_normed - normed * along) * scale
        if HAS_ADDED:
            result += tl.load(added + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(d_x + at, result.to(d_x.dtype.element_ty), mask=mask)
    to = sums + tl.program_id(0).to(tl.int64) * SIZE + column
    tl.store(to, total, mask=column < SIZE)


@triton.jit
def gate_kernel(gate, up, product, stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Writes BLOCK numbers of one row of ``silu(gate) * up``."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask, at = column < SIZE, row * stride + column
    value = tl.load(gate + at, mask=mask, other=0.0).to(tl.float32)
    up_value = tl.load(up + at, mask=mask, other=0.0).to(tl.float32)
    result = value * tl.sigmoid(value) * up_value
    tl.store(product + row * SIZE + column, result.to(product.dtype.element_ty), mask=mask)


@triton.jit
def gate_backward_kernel(grad, gate, up, product, d_gate, num, BLOCK: tl.constexpr):
    """Writes ``silu(gate) * up`` and the gradient of gate, and overwrites `grad`, that of the
    product, with the gradient of up."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < num
    d_out = tl.load(grad + at, mask=mask, other=0.0).to(tl.float32)
    value = tl.load(gate + at, mask=mask, other=0.0).to(tl.float32)
    up_value = tl.load(up + at, mask=mask, other=0.0).to(tl.float32)
    share = tl.sigmoid(value)
    activation = value * share
    slope = share + activation * (1.0 - share)
    dtype = product.dtype.element_ty
    tl.store(product + at, (activation * up_value).to(dtype), mask=mask)
    tl.store(d_gate + at, (d_out * up_value * slope).to(dtype), mask=mask)
    tl.store(grad + at, (d_out * activation).to(dtype), mask=mask)


@triton.jit
def rotate_kernel(
    x,
    cos,
    signed_sin,
    out,
    x_stride,
    out_stride,
    SIZE: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Writes BLOCK of the SIZE pairs of one row, rotated; HALF of them are a head's."""
    row = tl.program_id(0).to(tl.int64)
    pair = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = pair < SIZE
    within = pair % HALF
    first = (pair // HALF) * (2 * HALF) + within
    angle = row * (2 * HALF) + within
    a = tl.load(x + row * x_stride + first, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(x + row * x_stride + first + HALF, mask=mask, other=0.0).to(tl.float32)
    cos_a = tl.load(cos + angle, mask=mask, other=0.0).to(tl.float32)
    cos_b = tl.load(cos + angle + HALF, mask=mask, other=0.0).to(tl.float32)
    sin_a = tl.load(signed_sin + angle, mask=mask, other=0.0).to(tl.float32)
    sin_b = tl.load(signed_sin + angle + HALF, mask=mask, other=0.0).to(tl.float32)
    to = out + row * out_stride + first
    tl.store(to, (a * cos_a + b * sin_a).to(out.dtype.element_ty), mask=mask)
    tl.store(to + HALF, (b * cos_b + a * sin_b).to(out.dtype.element_ty), mask=mask)


# Slices of vectors over rows start anywhere: without this, unaligned ones would be compiled again.
@triton.jit(do_not_specialize=["log_sum", "entropy"])
def softmax_sums_kernel(logits, log_sum, entropy, scale, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Writes the log-sum-exp and the entropy of one row of ``scale * logits``.

    With m the largest z so far: `sums` adds up exp(z - m), `moments` exp(z - m) * (z - m). At the
    end log-sum-exp = m + log(sums), and entropy = log(sums) - moments / sums."""
    row = tl.program_id(0).to(tl.int64)
    largest = tl.full((), -1e30, tl.float32)  # not -inf: infinity times 0 is NaN
    sums, moments = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for start in range(0, SIZE, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = column < SIZE
        z = tl.load(logits + row * SIZE + column, mask=mask, other=0.0).to(tl.float32) * scale
        z = tl.where(mask, z, -1e30)
        higher = tl.maximum(largest, tl.max(z, axis=0))
        rise = higher - largest
        shrink = tl.exp(-rise)
        share = tl.exp(z - higher)
        moments = shrink * (moments - rise * sums) + share * (z - higher)
        sums = shrink * sums + share
        largest = higher
    total = tl.sum(sums, axis=0)
    tl.store(log_sum + row, largest + tl.log(total))
    tl.store(entropy + row, tl.log(total) - tl.sum(moments, axis=0) / total)


@triton.jit(do_not_specialize=["log_sum", "entropy", "d_sum", "d_entropy"])
def softmax_backward_kernel(
    logits,
    log_sum,
    entropy,
    d_sum,
    d_entropy,
    scale,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_ENTROPY: tl.constexpr,
):
    """Overwrites BLOCK logits of one row with their gradients, without the term of the chosen
    tokens (fused_softmax.py)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at, mask = logits + row * SIZE + column, column < SIZE
    logprob = tl.load(at, mask=mask, other=0.0).to(tl.float32) * scale - tl.load(log_sum + row)
    factor = tl.load(d_sum + row)
    if HAS_ENTROPY:
        factor = factor + tl.load(d_entropy + row) * (logprob + tl.load(entropy + row))
    tl.store(at, (-tl.exp(logprob) * factor).to(logits.dtype.element_ty), mask=mask)


class TritonKernels:
    """Launches the kernels for tensors of bfloat16, float16 and float32 on one CUDA device."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Returns ``x * rsqrt(mean(x^2) + eps) * weight`` for ``x [N, D]``."""
        x = x.contiguous()
        out, (rows, size) = torch.empty_like(x), x.shape
        block = triton.next_power_of_2(size)
        at_once = max(1, TILE // block)
        _launch(
            rms_norm_kernel,
            (triton.cdiv(rows, at_once),),
            *(x, weight, out, rows, eps),
            SIZE=size,
            BLOCK=block,
            ROWS=at_once,
            num_warps=_warps(max(block, TILE)),
        )
        return out

    def rms_norm_backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, eps: float, added: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns the gradients of ``x [N, D]``, plus `added`, and of the weight."""
        grad, x = grad.contiguous(), x.contiguous()
        d_x, (rows, size) = torch.empty_like(x), x.shape
        sums = x.new_empty(triton.cdiv(rows, PART), size, dtype=torch.float32)
        block = triton.next_power_of_2(size)
        _launch(
            rms_norm_backward_kernel,
            (len(sums),),
            *(grad, x, weight, x if added is None else added.contiguous()),
            *(d_x, sums, rows, eps),
            SIZE=size,
            BLOCK=block,
            ROWS=PART,
            HAS_ADDED=added is not None,
            num_warps=_warps(block),
        )
        return d_x, sums.sum(0).to(weight.dtype)

    def gate(self, gate: Tensor, up: Tensor) -> Tensor:
        """Returns ``silu(gate) * up`` of tensors ``[N, I]`` with the same stride between rows."""
        rows, size = gate.shape
        product = gate.new_empty(rows, size)
        _launch(
            gate_kernel,
            (rows, triton.cdiv(size, COLUMNS)),
            *(gate, up, product, gate.stride(0)),
            SIZE=size,
            BLOCK=COLUMNS,
        )
        return product

    def gate_backward(
        self, grad: Tensor, gate: Tensor, up: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns ``silu(gate) * up`` and the gradients of gate and up. `grad`, that of the
        product, is overwritten with the last one."""
        product, d_gate, num = torch.empty_like(gate), torch.empty_like(gate), gate.numel()
        tensors = (grad, gate, up, product, d_gate)
        _launch(gate_backward_kernel, (triton.cdiv(num, FLAT),), *tensors, num, BLOCK=FLAT)
        return product, d_gate, grad

    def rotate(self, x: Tensor, cos: Tensor, signed_sin: Tensor, out: Tensor) -> None:
        """Writes ``x [N, heads, d]`` with the rotary position (wide_layer.rotate) to `out`, which
        must not be `x`. A row is contiguous; `cos` and `signed_sin` are contiguous ``[N, 1, d]``.
        """
        rows, heads, dim = x.shape
        pairs = heads * dim // 2
        block = min(PAIRS, triton.next_power_of_2(pairs))
        _launch(
            rotate_kernel,
            (rows, triton.cdiv(pairs, block)),
            *(x, cos, signed_sin, out, x.stride(0), out.stride(0)),
            SIZE=pairs,
            HALF=dim // 2,
            BLOCK=block,
            num_warps=1 if block <= 128 else 4,
        )

    def softmax_sums(self, logits: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Returns log-sum-exp and entropy of each row of ``scale * logits [S, V]``, in float32."""
        log_sum, entropy = logits.new_empty(2, len(logits), dtype=torch.float32)
        _launch(
            softmax_sums_kernel,
            (len(logits),),
            *(logits, log_sum, entropy, scale),
            SIZE=logits.shape[1],
            BLOCK=VOCAB,
            num_warps=8,
        )
        return log_sum, entropy

    def softmax_backward(
        self,
        logits: Tensor,
        scale: float,
        sums: tuple[Tensor, Tensor],
        d_sum: Tensor,
        d_entropy: Tensor | None,
    ) -> None:
        """Overwrites ``logits [S, V]`` with ``- p * (d_sum + d_entropy * (log p + entropy))``;
        `sums` are the results of `softmax_sums`."""
        log_sum, entropy = sums
        _launch(
            softmax_backward_kernel,
            (len(logits), triton.cdiv(logits.shape[1], VOCAB)),
            *(logits, log_sum, entropy, d_sum),
            d_sum if d_entropy is None else d_entropy,
            scale,
            SIZE=logits.shape[1],
            BLOCK=VOCAB,
            HAS_ENTROPY=d_entropy is not None,
            num_warps=8,
        )


def _launch(kernel: Any, grid: tuple[int, ...], first: Tensor, *args: Any, **options: Any) -> None:
    """Launches a kernel on the device of its tensors, unless there is nothing to compute."""
    if grid[0]:
        with torch.cuda.device_of(first):
            kernel[grid](first, *args, **options)


def _warps(block: int) -> int:
    """Returns the warps of a program that sums `block` numbers."""
    return 4 if block <= 2048 else 8 if block <= 4096 else 16
