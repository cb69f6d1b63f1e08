"""Attention of some queries to some keys, with its log-sum-exp: one piece of a larger softmax.

    out, lse    = piece_forward(q, k, v, causal)                    lse: of this piece
    dq, dk, dv  = piece_backward(grad, q, k, v, out, lse, causal)   out, lse: of the WHOLE softmax

q is ``[B, heads, Q, d]``, k and v ``[B, heads, P, d]``, lse ``[B, heads, Q]`` in float32 or
wider; softmax scale ``d ** -0.5``. `causal` means query i sees keys 0 to i. On a CPU torch's flash
kernel computes it, elsewhere plain products in slices of queries.
"""

import torch
from torch import Tensor

from ajet.core.model.precision import to_wide_dtype, wide_dtype

MAX_SCORES = 1 << 26  # elements of one slice of scores, on devices without the flash kernel
_flash_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def piece_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    # At the shapes of a tiny model torch's flash kernel is twice as fast as plain products.
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
