"""Ancestors-only attention in dense pieces, each over a contiguous range of queries;
tree_attention.py explains how pieces become the whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ajet.core.model.attention.trie import Forest, TrieSegment
from ajet.core.model.attention.varlen_attention import merge
from ajet.core.model.precision import to_wide_dtype, wide_dtype

MAX_PADDING = 1.25  # padded over real tokens in one call for several segments


@dataclass(frozen=True, slots=True)
class SegmentCall:
    """Segments that run as one causal call.

    `tokens_BL` are their flat tokens (short segments repeat their first token); `cells_R` are the
    real ones among the ``B * L`` cells."""

    tokens_BL: Tensor
    cells_R: Tensor
    real_R: Tensor  # the flat tokens of those cells


@dataclass(frozen=True, slots=True)
class PiecePlan:
    """The pieces of one micro-batch's attention, which are the same in every layer: every segment
    with itself, causal, where segments of similar length share a call; then for each inner segment
    all its descendants (contiguous) x its keys, without a mask."""

    segment_calls: tuple[SegmentCall, ...]
    inner_segments: tuple[TrieSegment, ...]

    heads_dim: ClassVar[int] = 1

    @classmethod
    def of(cls, forest: Forest, device: torch.device) -> PiecePlan:
        by_length = sorted(forest.segments, key=lambda s: (s.stop - s.start, s.start))
        calls = tuple(_segment_call(chunk, device) for chunk in _chunks(by_length))
        return cls(calls, tuple(s for s in forest.segments if s.end > s.stop))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the output ``[N, heads, d]`` and the log-sum-exp ``[N, heads]``."""
        out = torch.empty_like(q)
        lse = q.new_empty(q.shape[:2], dtype=wide_dtype(q.dtype))
        for call in self.segment_calls:
            piece_out, piece_lse = piece_forward(*_gather(call, q, k, v), causal=True)
            out.index_copy_(0, call.real_R, _real(piece_out, call))
            lse.index_copy_(0, call.real_R, _real(piece_lse, call))
        # Then each descendant's softmax is extended by the keys of its ancestors, one at a time.
        for segment in self.inner_segments:
            span, descendants = slice(segment.start, segment.stop), slice(segment.stop, segment.end)
            piece_out, piece_lse = piece_forward(
                _fold(q[descendants], k), _batch(k[span]), _batch(v[span]), causal=False
            )
            merge(
                out[descendants], lse[descendants], _unfold(piece_out, q), _unfold(piece_lse, lse)
            )
        return out, lse

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the gradients of q, k and v; `out` and `lse` are those of `forward`."""
        # The calls of segments write every token once; inner segments add to that.
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for call in self.segment_calls:
            _segment_backward(call, (q, k, v, out, lse, grad), (dq, dk, dv))
        for segment in self.inner_segments:
            span, descendants = slice(segment.start, segment.stop), slice(segment.stop, segment.end)
            num_parts = _num_parts(segment.end - segment.stop, k)
            folded = (_fold(t[descendants], k, num_parts) for t in (grad, q, out, lse))
            grad_f, q_f, out_f, lse_f = folded
            keys, values = (_batch(t[span]).expand(num_parts, -1, -1, -1) for t in (k, v))
            piece_dq, piece_dk, piece_dv = piece_backward(
                grad_f, q_f, keys, values, out_f, lse_f, causal=False
            )
            dq[descendants] += _unfold(piece_dq, q)
            dk[span] += _sum_of_parts(piece_dk).transpose(0, 1)
            dv[span] += _sum_of_parts(piece_dv).transpose(0, 1)
        return dq, dk, dv


def _chunks(by_length: list[TrieSegment]) -> list[list[TrieSegment]]:
    """Groups segments, sorted by length, so that the padding of each group is limited."""
    chunks: list[list[TrieSegment]] = []
    real = 0
    for segment in by_length:
        length = segment.stop - segment.start
        if not chunks or length * (len(chunks[-1]) + 1) > MAX_PADDING * (real + length):
            chunks.append([])
            real = 0
        chunks[-1].append(segment)
        real += length
    return chunks


def _segment_call(segments: list[TrieSegment], device: torch.device) -> SegmentCall:
    longest = max(s.stop - s.start for s in segments)
    offsets_L = np.arange(longest)
    starts_B1 = np.array([[s.start] for s in segments])
    lengths_B1 = np.array([[s.stop - s.start] for s in segments])
    is_real_BL = offsets_L < lengths_B1
    tokens_BL = np.where(is_real_BL, starts_B1 + offsets_L, starts_B1)
    tensors = (tokens_BL, np.flatnonzero(is_real_BL), tokens_BL[is_real_BL])
    return SegmentCall(*(torch.from_numpy(t).to(device) for t in tensors))


def _rows(t: Tensor, index: Tensor) -> Tensor:
    """Returns ``t[index]`` for an index of any shape; index_select is twice as fast as that."""
    return t.index_select(0, index.flatten()).unflatten(0, index.shape)


def _gather(call: SegmentCall, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns ``[B, heads, L, d]`` of each; keys and values are repeated for their query heads."""
    group = q.shape[1] // k.shape[1]
    q_BLHd, k_BLKd, v_BLKd = (_rows(t, call.tokens_BL) for t in (q, k, v))
    return (
        q_BLHd.transpose(1, 2),
        k_BLKd.repeat_interleave(group, dim=2).transpose(1, 2),
        v_BLKd.repeat_interleave(group, dim=2).transpose(1, 2),
    )


def _real(t_BHLx: Tensor, call: SegmentCall) -> Tensor:
    """Returns the real cells ``[R, heads, …]`` of a padded result."""
    return _rows(t_BHLx.transpose(1, 2).flatten(0, 1), call.cells_R)


def _segment_backward(
    call: SegmentCall, saved: tuple[Tensor, ...], grads: tuple[Tensor, Tensor, Tensor]
) -> None:
    q, k, v, out, lse, grad = saved
    tokens, kv_heads = call.tokens_BL, k.shape[1]
    # A padded cell repeats a real token, so its gradient must be 0 or it would be counted twice.
    grad_BLHd = q.new_zeros((*tokens.shape, *q.shape[1:]))
    grad_BLHd.flatten(0, 1)[call.cells_R] = _rows(grad, call.real_R)
    # Its `lse` does not cover all its scores: exp(score - lse) may be inf, and inf * 0 is nan.
    lse_BLH = lse.new_full((*tokens.shape, q.shape[1]), torch.inf)
    lse_BLH.flatten(0, 1)[call.cells_R] = _rows(lse, call.real_R)
    pieces = piece_backward(
        grad_BLHd.transpose(1, 2),
        *_gather(call, q, k, v),
        _rows(out, tokens).transpose(1, 2),
        lse_BLH.transpose(1, 2),
        causal=True,
    )
    dq, dk, dv = (_real(piece, call) for piece in pieces)
    grads[0].index_copy_(0, call.real_R, dq)
    for target, wide in ((grads[1], dk), (grads[2], dv)):
        # `_gather` repeated each key head for its query heads: their gradients add up.
        target.index_copy_(0, call.real_R, wide.unflatten(1, (kv_heads, -1)).sum(2))


def _batch(t_PKd: Tensor) -> Tensor:
    return t_PKd.transpose(0, 1).unsqueeze(0)


def _num_parts(num_queries: int, k: Tensor) -> int:
    """Returns the number of parts into which the queries of a backward pass are divided. The flash
    kernel computes the gradients of one key head in one thread: with three key heads, a second
    thread would be idle for a third of the time."""
    threads = torch.get_num_threads() if k.device.type == "cpu" else 1
    return 1 if k.shape[1] % threads == 0 or num_queries % threads else threads


def _sum_of_parts(t_BKPd: Tensor) -> Tensor:
    return t_BKPd[0] if len(t_BKPd) == 1 else t_BKPd.sum(0)


def _fold(t: Tensor, k: Tensor, num_parts: int = 1) -> Tensor:
    """Reshapes ``[T, heads, …] -> [parts, kv_heads, T / parts * group, …]``: the query heads of one
    key head become more queries, so keys are not repeated. Only correct without a causal mask."""
    kv_heads = k.shape[1]
    by_part = t.unflatten(1, (kv_heads, -1)).unflatten(0, (num_parts, -1))
    return by_part.transpose(1, 2).flatten(2, 3)


def _unfold(folded: Tensor, like: Tensor) -> Tensor:
    """Reverses `_fold`, to ``[T, heads, …]``."""
    kv_heads = folded.shape[1]
    group = like.shape[1] // kv_heads
    by_part = folded.unflatten(2, (-1, group)).transpose(1, 2)
    return by_part.flatten(2, 3).flatten(0, 1)


MAX_SCORES = 1 << 26  # elements of one slice of scores, on devices without the flash kernel
_flash_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def piece_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    # On a CPU torch's flash kernel: at the shapes of a tiny model it is twice as fast as products.
    """Returns the attention of some queries to some keys and its log-sum-exp, one piece of a larger
    softmax. q is ``[B, heads, Q, d]``, k and v ``[B, heads, P, d]``, lse ``[B, heads, Q]`` in
    float32 or wider; softmax scale ``d ** -0.5``. `causal` means query i sees keys 0 to i."""
    if q.device.type == "cpu":
        out, lse = _flash_forward(q, k, v, 0.0, causal)
        return out, lse
    return product_forward(q, k, v, causal)


def piece_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns this piece's part of the gradients; `out` and `lse` are those of the whole
    softmax."""
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and causal:
        # For short segments the kernel's float32 backward is twice as fast as its bfloat16 one.
        grad, q, k, v, out = (t.float() for t in (grad, q, k, v, out))
        grads = _flash_backward(grad, q, k, v, out, lse, 0.0, causal)
        dq, dk, dv = (t.bfloat16() for t in grads)
        return dq, dk, dv
    if q.device.type == "cpu":
        dq, dk, dv = _flash_backward(grad, q, k, v, out, lse, 0.0, causal)
        return dq, dk, dv
    return product_backward(grad, q, k, v, out, lse, causal)


def product_forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, max_scores: int = MAX_SCORES
) -> tuple[Tensor, Tensor]:
    """Computes `piece_forward` with plain products, at most `max_scores` scores at a time."""
    outs, lses = [], []
    for part in _slices(q, k, max_scores):
        scores = _scores(q[:, :, part], k, part.start, causal)
        lse = torch.logsumexp(scores, dim=-1)
        weights = (scores - lse.unsqueeze(-1)).exp_().to(v.dtype)
        outs.append(weights @ v)
        lses.append(lse)
    return torch.cat(outs, dim=2), torch.cat(lses, dim=2)


def product_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    max_scores: int = MAX_SCORES,
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes `piece_backward` with plain products; softmax and sums are in float32 or wider."""
    scale = q.shape[-1] ** -0.5
    dqs, dk, dv = (
        [],
        torch.zeros_like(k, dtype=wide_dtype(k.dtype)),
        torch.zeros_like(v, dtype=wide_dtype(v.dtype)),
    )
    for part in _slices(q, k, max_scores):
        grad_part, q_part = grad[:, :, part], q[:, :, part]
        scores = _scores(q_part, k, part.start, causal)
        # With the lse of the whole softmax these are its weights, of which the piece has a part.
        # delta = sum over ALL keys of weight * d_weight = grad . out, so `out` is the whole's too.
        weights = (scores - lse[:, :, part].unsqueeze(-1)).exp_()
        delta = (to_wide_dtype(grad_part) * to_wide_dtype(out[:, :, part])).sum(-1, keepdim=True)
        d_weights = to_wide_dtype(grad_part @ v.transpose(2, 3))
        d_scores = ((d_weights - delta) * weights * scale).to(q.dtype)
        dqs.append(d_scores @ k)
        dk += d_scores.transpose(2, 3) @ q_part
        dv += weights.to(q.dtype).transpose(2, 3) @ grad_part
    return torch.cat(dqs, dim=2), dk.to(k.dtype), dv.to(v.dtype)


def _slices(q: Tensor, k: Tensor, max_scores: int) -> list[slice]:
    batch, heads, num_queries, _ = q.shape
    step = max(1, max_scores // (batch * heads * k.shape[2]))
    return [slice(i, min(i + step, num_queries)) for i in range(0, num_queries, step)]


def _scores(q: Tensor, k: Tensor, first_query: int, causal: bool) -> Tensor:
    scores = to_wide_dtype(q @ k.transpose(2, 3)) * q.shape[-1] ** -0.5
    if not causal:
        return scores
    queries = torch.arange(first_query, first_query + q.shape[2], device=q.device)
    hidden = torch.arange(k.shape[2], device=q.device) > queries.unsqueeze(1)
    return scores.masked_fill_(hidden, float("-inf"))
