"""Ancestors-only attention by kernels for sequences of several lengths, level by level.

The flat tokens are the segments one after another, so one causal call, whose sequences are the
segments, is every segment's attention to itself. The inner segments with the same number of
ancestors form a level; one call without a mask computes their descendants' attention to them:

    s q a b c d    segments s q | a b | c d      itself:  cu_queries 0 2 4 6    cu_keys 0 2 4 6
                   level 0: s q                  queries   a b c d    0 4        keys s q    0 2

The number of calls does not depend on the number of segments. The trainer's queries are all tokens
of the forest, the engine's are new tokens: the others have keys and values in its cache.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ajet.core.model.attention.merging import merge
from ajet.core.model.attention.trie import Forest, IntArray, TrieSegment, parents_of
from ajet.core.model.attention.varlen_kernels import FlashKernel, VarlenCall, VarlenKernel
from ajet.core.model.transfer import uploaded


@dataclass(frozen=True, slots=True)
class VarlenLevel:
    """The call of one level, and the indices of its queries and keys among those of `forward`."""

    call: VarlenCall
    queries_Q: Tensor
    keys_P: Tensor

    @classmethod
    def of(
        cls, queries: Sequence[IntArray], keys: Sequence[IntArray], device: torch.device
    ) -> VarlenLevel:
        return cls(
            VarlenCall.of([len(q) for q in queries], [len(k) for k in keys], False, device),
            _index(queries, device),
            _index(keys, device),
        )


@dataclass(frozen=True, slots=True)
class NewTokens:
    """Which tokens of a forest are queries, and the indices of the keys of all tokens; a segment is
    new as a whole, or not at all."""

    is_new_N: NDArray[np.bool_]
    keys_N: IntArray


@dataclass(frozen=True, slots=True)
class VarlenPlan:
    """The calls of one micro-batch's attention, which are the same in every layer."""

    segment_call: VarlenCall
    levels: tuple[VarlenLevel, ...]
    kernel: VarlenKernel

    heads_dim: ClassVar[int] = 0

    @classmethod
    def of(
        cls,
        forest: Forest,
        device: torch.device,
        kernel: VarlenKernel | None = None,
        new: NewTokens | None = None,
    ) -> VarlenPlan:
        """Makes the calls of a forest, with `new` only for these of its tokens."""
        new = new or NewTokens(np.ones(len(forest), bool), np.arange(len(forest)))
        query_N = np.cumsum(new.is_new_N) - 1  # the index of a new token among new tokens
        lengths = [s.stop - s.start for s in forest.segments if new.is_new_N[s.start]]
        levels = [
            VarlenLevel.of(
                [query_N[s.stop : s.end][new.is_new_N[s.stop : s.end]] for s in level],
                [new.keys_N[s.start : s.stop] for s in level],
                device,
            )
            for level in _levels(forest.segments)
        ]
        segment_call = VarlenCall.of(lengths, lengths, True, device)
        return cls(segment_call, tuple(levels), kernel or FlashKernel())

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, ancestor_kv: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns the output ``[N, heads, d]`` and the log-sum-exp ``[heads, N]``. The levels read
        keys and values from `ancestor_kv`, or from k and v."""
        level_k, level_v = ancestor_kv or (k, v)
        out, lse = self.kernel.forward(q, k, v, self.segment_call)
        for level in self.levels:
            queries, keys = level.queries_Q, level.keys_P
            piece_out, piece_lse = self.kernel.forward(
                q[queries], level_k[keys], level_v[keys], level.call
            )
            merged_out, merged_lse = out[queries], lse[:, queries].T
            merge(merged_out, merged_lse, piece_out, piece_lse.T)
            out.index_copy_(0, queries, merged_out)
            lse.index_copy_(1, queries, merged_lse.T)
        return out, lse

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the gradients of q, k and v; `out` and `lse` are those of `forward`."""
        dq, dk, dv = self.kernel.backward(grad, q, k, v, out, lse, self.segment_call)
        for level in self.levels:
            queries, keys = level.queries_Q, level.keys_P
            piece_dq, piece_dk, piece_dv = self.kernel.backward(
                *(grad[queries], q[queries], k[keys], v[keys], out[queries]),
                *(lse[:, queries].contiguous(), level.call),
            )
            dq.index_add_(0, queries, piece_dq)
            dk.index_add_(0, keys, piece_dk)
            dv.index_add_(0, keys, piece_dv)
        return dq, dk, dv


def _levels(segments: Sequence[TrieSegment]) -> list[list[TrieSegment]]:
    """Groups the inner segments by the number of their ancestors."""
    depths: list[int] = []
    levels: dict[int, list[TrieSegment]] = defaultdict(list)
    for segment, parent in zip(segments, parents_of(segments), strict=True):
        depths.append(0 if parent < 0 else depths[parent] + 1)
        if segment.end > segment.stop:
            levels[depths[-1]].append(segment)
    return [levels[depth] for depth in sorted(levels)]


def _index(ranges: Sequence[IntArray], device: torch.device) -> Tensor:
    return uploaded(np.concatenate(ranges), device)
