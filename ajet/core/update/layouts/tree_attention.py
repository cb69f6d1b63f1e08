"""Ancestors-only attention over a flattened trie, without a mask: a token attends to its own
segment causally and to each ancestor segment fully. So the attention of a batch is a few dense
products, and nothing of size queries x keys is stored. There are no second derivatives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ajet.core.model.attention.trie import Forest, parents_of
from ajet.core.model.attention.varlen_attention import VarlenPlan, varlen_kernel_for
from ajet.core.model.kernels.functions import Kernels, attention_kernels_for
from ajet.core.model.kernels.segments import AttentionSegment, SegmentTable
from ajet.core.update.layouts.piece_plan import PiecePlan


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """Computes everything in one call of the compiled kernels for a CPU. Queries meet their own
    segment and all ancestors in one softmax, so nothing is gathered, merged or repeated for the
    heads that share a key head."""

    kernels: Kernels
    table: SegmentTable

    heads_dim: ClassVar[int] = 1

    @classmethod
    def of(cls, kernels: Kernels, forest: Forest, group: int) -> KernelPlan:
        """`group` is the number of query heads to a key head."""
        segments: list[AttentionSegment] = []
        for segment, parent in zip(forest.segments, parents_of(forest.segments), strict=True):
            length = segment.stop - segment.start
            segments.append(AttentionSegment(segment.start, length, segment.start, length, parent))
        return cls(kernels, SegmentTable.of(segments, group))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self.kernels.attention(q, k, v, self.table)

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self.kernels.attention_backward(grad, q, k, v, out, lse, self.table)


AttentionPlan = VarlenPlan | KernelPlan | PiecePlan
"""Computes the attention of one micro-batch, the same in every layer. `heads_dim` is the dimension
of the heads in its log-sum-exp, 0 or 1; the other is that of the tokens."""


def attention_plan(forest: Forest, q_NHd: Tensor, k_NKd: Tensor) -> AttentionPlan:
    """Returns the plan for the forest on the device and in the dtype of these queries and keys."""
    # CUDA: one call for all segments, and one for each level of ancestors.
    varlen_kernel = varlen_kernel_for(q_NHd)
    if varlen_kernel is not None:
        return VarlenPlan.of(forest, q_NHd.device, varlen_kernel)
    kernels = attention_kernels_for(q_NHd)
    if kernels is not None:
        return KernelPlan.of(kernels, forest, q_NHd.shape[1] // k_NKd.shape[1])
    # Other devices and dtypes, narrow heads, or no C compiler: one piece after another.
    return PiecePlan.of(forest, q_NHd.device)


def tree_attention(
    q_NHd: Tensor, k_NKd: Tensor, v_NKd: Tensor, plan: AttentionPlan, sinks_H: Tensor | None = None
) -> Tensor:
    """Returns the attention ``[N, heads, d]``; the softmax scale is ``d ** -0.5``. `sinks_H` are
    scores that take a part of each softmax and add nothing to the output: one more piece, whose
    log-sum-exp is the score and whose output is 0."""
    return _TreeAttention.apply(q_NHd, k_NKd, v_NKd, plan, sinks_H)  # type: ignore[no-any-return]


class _TreeAttention(torch.autograd.Function):
    """Pieces are merged by log-sum-exp, out = sum_pieces exp(lse_piece - lse) * out_piece, with lse
    = logsumexp(lse_pieces). The backward pass needs no merging: with the total `lse` and the total
    output, every piece gives its exact share of the gradients (as in ring attention)."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, sinks: Tensor | None
    ) -> Tensor:
        out, lse = plan.forward(q, k, v)
        if sinks is not None:
            # The lse is [N, heads] or [heads, N]: `heads_dim` says where the sinks go.
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
            # The softmax's gradient w_sink * (d_w_sink - grad . out), where d_w_sink is 0.
            weights_NH = (sinks[0] - lse.movedim(ctx.plan.heads_dim, 1)).exp()
            d_sinks = -(weights_NH * (grad * out).sum(-1)).sum(0).to(sinks[0].dtype)
        return *ctx.plan.backward(grad, q, k, v, out, lse), None, d_sinks
