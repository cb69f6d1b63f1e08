"""Ancestors-only attention over a flattened trie, without a mask.

A token attends to its own segment causally and to each ancestor segment fully. So the attention of
a batch is a few dense products, merged by log-sum-exp:

    out = sum_pieces exp(lse_piece - lse) * out_piece        lse = logsumexp(lse_pieces)

The backward pass needs no merging: with the total `lse` and the total output, every piece gives
its exact share of the gradients (as in ring attention). Nothing of size queries x keys is stored.

A plan holds the pieces of a micro-batch. `VarlenPlan` computes all segments, and each level of
ancestors, in one call of a kernel of CUDA for sequences of several lengths. `KernelPlan`
computes everything in one call of the compiled kernels for a CPU, in one softmax. `PiecePlan`
computes one piece after another where neither is. Not covered: second derivatives, attention
dropout.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from ajet.core.model.attention.trie import Forest
from ajet.core.model.attention.varlen_kernels import varlen_kernel_for
from ajet.core.model.attention.varlen_plan import VarlenPlan
from ajet.core.update.layouts.kernel_plan import KernelPlan
from ajet.core.update.layouts.piece_plan import PiecePlan


class AttentionPlan(Protocol):
    """Computes the attention of one micro-batch; the same plan serves every layer."""

    heads_dim: ClassVar[int]
    """The dimension of the heads in the log-sum-exp, 0 or 1; the other one is the tokens'."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the output ``[N, heads, d]`` and a log-sum-exp in the plan's own layout."""
        ...

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the gradients of q, k and v; `out` and `lse` are those of `forward`."""
        ...


def attention_plan(forest: Forest, q_NHd: Tensor, k_NKd: Tensor) -> AttentionPlan:
    """Returns the plan for the forest on the device and in the dtype of these queries and keys."""
    kernel = varlen_kernel_for(q_NHd)
    if kernel is not None:
        return VarlenPlan.of(forest, q_NHd.device, kernel)
    if KernelPlan.supports(q_NHd):
        return KernelPlan.of(forest, q_NHd, k_NKd)
    return PiecePlan.of(forest, q_NHd.device)


def tree_attention(
    q_NHd: Tensor,
    k_NKd: Tensor,
    v_NKd: Tensor,
    plan: AttentionPlan,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """Returns the attention ``[N, heads, d]``; the softmax scale is ``d ** -0.5``. `sinks_H` are
    scores that take their part of each softmax and add nothing to the output: one more piece, with
    a log-sum-exp of its own and an output of 0."""
    return _TreeAttention.apply(q_NHd, k_NKd, v_NKd, plan, sinks_H)  # type: ignore[no-any-return]


class _TreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, sinks: Tensor | None
    ) -> Tensor:
        out, lse = plan.forward(q, k, v)
        if sinks is not None:
            total = lse.logaddexp(sinks.to(lse.dtype).unsqueeze(1 - plan.heads_dim))
            share = (lse - total).exp().movedim(plan.heads_dim, 1)
            out, lse = out * share.unsqueeze(-1).to(out.dtype), total
        ctx.plan = plan
        ctx.save_for_backward(q, k, v, out, lse, *(() if sinks is None else (sinks,)))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, Tensor | None]:
        q, k, v, out, lse, *sinks = ctx.saved_tensors
        grad = grads[0].contiguous()
        d_sinks: Tensor | None = None
        if sinks:
            weights_NH = (sinks[0] - lse.movedim(ctx.plan.heads_dim, 1)).exp()
            d_sinks = -(weights_NH * (grad * out).sum(-1)).sum(0).to(sinks[0].dtype)
        return *ctx.plan.backward(grad, q, k, v, out, lse), None, d_sinks
