"""Ancestors-only attention on a CPU in one call of the compiled kernels, whatever the segments.

Queries meet their own segment and all of its ancestors in one softmax, so nothing is gathered,
merged or repeated for the heads that share a key head.

Not covered: what `supports` refuses: other devices and dtypes, narrow heads, machines without a C
compiler. piece_plan.py serves those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ajet.core.model.attention.trie import Forest, parents_of
from ajet.core.model.kernels.functions import Kernels, attention_kernels_for
from ajet.core.model.kernels.segments import AttentionSegment, SegmentTable


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """Holds the table of one micro-batch's segments, which is the same in every layer."""

    kernels: Kernels
    table: SegmentTable

    heads_dim: ClassVar[int] = 1

    @staticmethod
    def supports(q_NHd: Tensor) -> bool:
        """Tells whether the kernels compute attention of such queries."""
        return attention_kernels_for(q_NHd) is not None

    @classmethod
    def of(cls, forest: Forest, q_NHd: Tensor, k_NKd: Tensor) -> KernelPlan:
        kernels = attention_kernels_for(q_NHd)
        assert kernels is not None, "supports() was asked"
        return cls(kernels, SegmentTable.of(_segments(forest), q_NHd.shape[1] // k_NKd.shape[1]))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the output ``[N, heads, d]`` and the log-sum-exp ``[N, heads]``."""
        return self.kernels.attention(q, k, v, self.table)

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the gradients of q, k and v; `out` and `lse` are those of `forward`."""
        return self.kernels.attention_backward(grad, q, k, v, out, lse, self.table)


def _segments(forest: Forest) -> list[AttentionSegment]:
    """Returns the forest's segments, each with its parent."""
    found: list[AttentionSegment] = []
    for segment, parent in zip(forest.segments, parents_of(forest.segments), strict=True):
        length = segment.stop - segment.start
        found.append(AttentionSegment(segment.start, length, segment.start, length, parent))
    return found
