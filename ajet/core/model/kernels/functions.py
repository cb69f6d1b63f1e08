"""The compiled kernels as functions of tensors of float32 and bfloat16 on the CPU. A decode step of
32 rows is many small operations, which cost 5 to 40 microseconds each in torch. In an update,
torch's attention reaches a sixth of the speed of its products, and what is between the products of
a layer goes through memory several times. The kernels round differently from torch.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from ajet.core.model.kernels.library import library
from ajet.core.model.kernels.segments import KEYS, SegmentTable, padded

NAMES = {torch.float32: "float", torch.bfloat16: "bfloat16"}
# These sizes are those of kernels.c, which writes into memory that is allocated here.
PART = 256  # rows of a part of a sum
DRAWN = 256  # tokens of a block of `draw`
DEPTH, OUTPUTS = 192, 96  # rows of a block of `weight_gradient`, and its outputs at most
STRIP, WIDTH = 12, 32  # its outputs and inputs are padded to multiples of these
MIN_DIM, MULTIPLE = 64, 32  # in attention of an update, the least width of a head, and its divisor

# The C signatures: a wrong one would read or write other memory.
_P, _I, _F = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
ARGUMENTS: dict[str, tuple[type, ...]] = {
    "rms_norm": (_P, _P, _F, _P, *[_I] * 3),
    "rotate": (_P, _I, *[_P] * 3, *[_I] * 5),
    "attend": (*[_P] * 3, *[_I] * 3, *[_P] * 5, _I, *[_P] * 2, *[_I] * 7),
    "draw": (*[_P] * 8, *[_I] * 3),
    "attention": (*[_P] * 9, *[_I] * 7),
    "attention_backward": (*[_P] * 16, *[_I] * 8),
    "gate": (*[_P] * 3, *[_I] * 2),
    "gate_backward": (*[_P] * 5, *[_I] * 2),
    "weight_gradient": (_P, _I, _P, _I, *[_P] * 4, *[_I] * 5),
    "softmax": (_P, _F, *[_P] * 2, *[_I] * 3),
    "rms_norm_backward": (*[_P] * 4, _F, *[_P] * 2, *[_I] * 3),
}


class Kernels:
    """Calls the compiled functions."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._functions: dict[tuple[str, torch.dtype], ctypes._FuncPointer] = {}
        for name, types in ARGUMENTS.items():
            for dtype, suffix in NAMES.items():
                function = getattr(library, f"{name}_{suffix}")
                function.argtypes, function.restype = types, None
                self._functions[name, dtype] = function

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Returns ``x * rsqrt(mean(x^2) + eps) * weight`` for ``x [N, D]``."""
        x = x.contiguous()
        out = torch.empty_like(x)
        self._functions["rms_norm", x.dtype](
            x.data_ptr(), weight.data_ptr(), eps, out.data_ptr(), *x.shape, torch.get_num_threads()
        )
        return out

    def rotate(self, x: Tensor, cos: Tensor, signed_sin: Tensor, out: Tensor) -> None:
        """Writes ``x [N, heads, d]`` with the rotary position (wide_layer.rotate) to `out`, which
        may be `x`. A row is contiguous; `cos` and `signed_sin` are ``[N, 1, d]``."""
        self._functions["rotate", x.dtype](
            x.data_ptr(),
            x.stride(0),
            *(t.data_ptr() for t in (cos, signed_sin, out)),
            out.stride(0),
            *x.shape,
            torch.get_num_threads(),
        )

    def shared_keys(self, keys: Tensor) -> Tensor:
        """Pads the keys ``[kv_heads, S, d]`` of a segment with rows of zeros, for `attend`."""
        padding = padded(keys.shape[1]) - keys.shape[1]
        return torch.nn.functional.pad(keys, (0, 0, 0, padding)).contiguous()

    def shared_values(self, values: Tensor) -> Tensor:
        """Arranges the values of a segment as tiles ``[kv_heads, S / KEYS, d, KEYS]``, for
        `attend`."""
        return self.shared_keys(values).unflatten(1, (-1, KEYS)).transpose(2, 3).contiguous()

    def attend(
        self,
        qkv: tuple[Tensor, Tensor, Tensor],
        row_kv: tuple[Tensor, Tensor],
        start_R: Tensor,
        column: int,
        segments_S3: Tensor,
        shared: tuple[Sequence[Tensor], Sequence[Tensor]],
    ) -> Tensor:
        """Writes the new keys and values ``[rows, kv_heads, d]`` to `column` of `row_kv`
        ``[kv_heads, rows, columns, d]``, and returns the attention ``[rows, heads, d]``.

        Row r sees the keys of its segment, and its columns from ``start_R[r]`` to `column`. A
        segment is its first row, the row after its last, and the number of its keys; `shared` has
        their keys and values as `shared_keys` and `shared_values` return them."""
        q, (kv_heads, rows, columns, dim) = qkv[0], row_kv[0].shape
        group = q.shape[1] // kv_heads
        out = q.new_empty(q.shape)
        scratch = torch.empty(kv_heads * rows * group * (dim + 2 + columns))
        addresses = [part.data_ptr() for tensors in zip(*shared, strict=True) for part in tensors]
        self._functions["attend", q.dtype](
            *(t.data_ptr() for t in qkv),
            *(t.stride(0) for t in qkv),
            *(t.data_ptr() for t in (*row_kv, start_R, segments_S3)),
            (ctypes.c_void_p * len(addresses))(*addresses),
            len(shared[0]),
            *(t.data_ptr() for t in (out, scratch)),
            *(kv_heads, rows, group, dim, columns, column, torch.get_num_threads()),
        )
        return out

    def draw(
        self, logits: Tensor, scales: Tensor, u: Tensor, greedy: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draws a token of each row of ``logits [R, V]`` times ``scales [R]`` in float32: the first
        whose cumulative probability exceeds ``u [R]`` (float64), or in `greedy` rows the first of
        the largest. Returns the tokens, their log-probabilities, and the rows' sums of
        exponentials, which are not finite where a logit is not."""
        logits = logits.contiguous()
        rows, size = logits.shape
        sums = torch.empty(rows * -(-size // DRAWN), dtype=torch.float64)
        tokens, logprobs = torch.empty(rows, dtype=torch.long), torch.empty(rows)
        totals = torch.empty(rows, dtype=torch.float64)
        self._functions["draw", logits.dtype](
            *(t.data_ptr() for t in (logits, scales, u, greedy, sums, tokens, logprobs, totals)),
            *(rows, size, torch.get_num_threads()),
        )
        return tokens, logprobs, totals

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, table: SegmentTable
    ) -> tuple[Tensor, Tensor]:
        """Returns the attention of queries ``[N, heads, d]`` to keys and values ``[M, kv_heads,
        d]`` over the segments of the table, and its log-sum-exp ``[N, heads]`` in float32."""
        q, k, v = (_with_rows(t) for t in (q, k, v))
        (num, heads, dim), kv_heads = q.shape, k.shape[1]
        out, lse = q.new_empty(q.shape), torch.empty(num, heads)
        scratch = q.new_empty(2 * kv_heads * table.num_padded * dim)
        self._functions["attention", q.dtype](
            *(t.data_ptr() for t in (q, k, v, out, lse, scratch)),
            _strides(q, k, v),
            *(t.data_ptr() for t in (table.segments_S6, table.blocks_B2)),
            *(len(table.segments_S6), len(table.blocks_B2), table.num_padded),
            *(kv_heads, heads // kv_heads, dim, torch.get_num_threads()),
        )
        return out, lse

    def attention_backward(
        self,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        table: SegmentTable,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the gradients of q, k and v; `out` and `lse` are the results of `attention`."""
        grad, q, k, v, out = (_with_rows(t) for t in (grad, q, k, v, out))
        (_, heads, dim), kv_heads = q.shape, k.shape[1]
        dq, dk, dv = (t.new_empty(t.shape) for t in (q, k, v))
        scratch = q.new_empty(3 * kv_heads * table.num_padded * dim)
        sums = torch.empty(2 * kv_heads * table.num_cells * dim)
        tables = (table.segments_S6, table.blocks_B2, table.starts_P, table.cells_PS)
        self._functions["attention_backward", q.dtype](
            *(t.data_ptr() for t in (grad, q, k, v, out, lse, dq, dk, dv, scratch, sums)),
            _strides(q, k, v, grad, out),
            *(t.data_ptr() for t in tables),
            *(*table.cells_PS.shape[::-1], table.num_padded, table.num_cells),
            *(kv_heads, heads // kv_heads, dim, torch.get_num_threads()),
        )
        return dq, dk, dv

    def gate(self, gate: Tensor, up: Tensor) -> Tensor:
        """Returns ``silu(gate) * up`` of contiguous tensors."""
        product = torch.empty_like(gate)
        self._functions["gate", gate.dtype](
            *(t.data_ptr() for t in (gate, up, product)), gate.numel(), torch.get_num_threads()
        )
        return product

    def gate_backward(
        self, grad: Tensor, gate: Tensor, up: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns ``silu(gate) * up`` and the gradients of gate and up. `grad`, that of the
        product, is overwritten with the last one."""
        product, d_gate = torch.empty_like(gate), torch.empty_like(gate)
        self._functions["gate_backward", gate.dtype](
            *(t.data_ptr() for t in (grad, gate, up, product, d_gate)),
            *(gate.numel(), torch.get_num_threads()),
        )
        return product, d_gate, grad

    def rms_norm_backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, eps: float, added: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns the gradients of ``x [N, D]``, plus `added`, and of the weight."""
        rows, size = x.shape
        d_x, sums = torch.empty_like(x), torch.empty(-(-rows // PART), size)
        self._functions["rms_norm_backward", x.dtype](
            *(t.data_ptr() for t in (grad, x, weight)),
            None if added is None else added.data_ptr(),
            *(eps, d_x.data_ptr(), sums.data_ptr(), rows, size, torch.get_num_threads()),
        )
        return d_x, sums.sum(0).to(weight.dtype)

    def weight_gradient(self, grad: Tensor, x: Tensor) -> Tensor:
        """Returns ``grad.T @ x`` for ``grad [N, O]`` and ``x [N, I]``. The order of its sums
        depends only on N, not on the number of threads."""
        grad, x = _with_rows(grad), _with_rows(x)
        (rows, outputs), inputs, threads = grad.shape, x.shape[1], torch.get_num_threads()
        height = min(OUTPUTS, _multiple(-(-outputs // threads), STRIP))
        out = x.new_empty(outputs, inputs)
        panels = x.new_empty((rows + 1) * _multiple(inputs, WIDTH))
        strips = x.new_empty(threads * height * DEPTH)
        sums = torch.empty(threads * height * _multiple(inputs, WIDTH))
        self._functions["weight_gradient", x.dtype](
            *(grad.data_ptr(), grad.stride(0), x.data_ptr(), x.stride(0)),
            *(t.data_ptr() for t in (out, panels, strips, sums)),
            *(rows, outputs, inputs, height, threads),
        )
        return out

    def softmax(self, logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Overwrites ``logits [U, V]`` with the softmax of ``logits / temperature``; returns its
        entropy and the log-sum-exp of ``logits / temperature``, both ``[U]`` in float32."""
        entropy, log_sum = logits.new_empty(2, len(logits), dtype=torch.float32)
        self._functions["softmax", logits.dtype](
            logits.data_ptr(),
            1 / temperature,
            *(t.data_ptr() for t in (entropy, log_sum)),
            *(*logits.shape, torch.get_num_threads()),
        )
        return entropy, log_sum


def kernels_for(tensor: Tensor) -> Kernels | None:
    if tensor.device.type != "cpu" or tensor.dtype not in NAMES:
        return None
    return kernels()


def attention_kernels_for(q: Tensor) -> Kernels | None:
    """Returns the kernels if they compute attention of such heads. Narrower ones are left to torch:
    recorded figures of small models were computed with it."""
    is_wide = q.shape[-1] >= MIN_DIM and q.shape[-1] % MULTIPLE == 0
    return kernels_for(q) if is_wide else None


@functools.cache
def kernels() -> Kernels | None:
    loaded = library()
    return None if loaded is None else Kernels(loaded)


def _multiple(num: int, divisor: int) -> int:
    return -(-num // divisor) * divisor


def _with_rows(tensor: Tensor) -> Tensor:
    """Returns the tensor, copied unless its last dimension is contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _strides(*tensors: Tensor) -> ctypes.Array[ctypes.c_long]:
    """Returns the first two strides of each tensor."""
    strides = [stride for tensor in tensors for stride in tensor.stride()[:2]]
    return (ctypes.c_long * len(strides))(*strides)
