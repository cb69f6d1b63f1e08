"""Ancestors-only attention by torch's CUDA kernels for sequences of several lengths, one after
another. They are called below autograd: the gradient of a part of a softmax is that of the kernel
with the output and the log-sum-exp of the whole. Their backward passes add up gradients in an order
that may change from run to run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ajet.core.model.attention.trie import Forest, IntArray, TrieSegment, parents_of
from ajet.core.model.transfer import uploaded

MAX_HEAD_DIM = 256
FLASH_CAPABILITY = (8, 0)
EFFICIENT_CAPABILITY = (5, 0)
_efficient_forward = torch.ops.aten._efficient_attention_forward
_efficient_backward = torch.ops.aten._efficient_attention_backward
LSE_MULTIPLE = 32
"""A row of EfficientKernel's log-sum-exps is padded to a multiple of this, with infinity."""


@dataclass(frozen=True)
class VarlenCall:
    """The sequences of a call: sequence i has ``num_queries[i]`` queries, from ``cu_queries[i]``
    on, and the keys ``cu_keys[i] : cu_keys[i + 1]``. `max_queries` and `max_keys` are the longest.
    """

    num_queries: tuple[int, ...]
    cu_queries: Tensor
    cu_keys: Tensor
    max_queries: int
    max_keys: int
    causal: bool

    @classmethod
    def of(
        cls, queries: Sequence[int], keys: Sequence[int], causal: bool, device: torch.device
    ) -> VarlenCall:
        """`queries` and `keys` are the numbers of each sequence."""
        cu_queries, cu_keys = _cumulative(queries, device), _cumulative(keys, device)
        return cls(tuple(queries), cu_queries, cu_keys, max(queries), max(keys), causal)

    @cached_property
    def place_Q(self) -> Tensor:
        """The index of each query in a flat rectangle with a row of ``padded(max_queries)`` for
        each sequence."""
        width = padded(self.max_queries)
        places = [number * width + np.arange(num) for number, num in enumerate(self.num_queries)]
        return uploaded(np.concatenate(places), self.cu_queries.device)


class FlashKernel:
    """torch's flash attention: bfloat16 and float16, from compute capability 8.0. Groups of query
    heads share key heads.

    A kernel computes attention of ``q [Q, heads, d]`` to ``k, v [P, kv_heads, d]``, sequence by
    sequence. The log-sum-exp is ``[heads, Q]`` in float32 or wider."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, call: VarlenCall) -> tuple[Tensor, Tensor]:
        """Returns the output and the log-sum-exp."""
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            *(q, k, v, call.cu_queries, call.cu_keys, call.max_queries, call.max_keys),
            *(0.0, call.causal, False),  # dropout, causal, debug mask
        )
        return out, lse

    def backward(
        self,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        call: VarlenCall,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns this call's part of the gradients; `out` and `lse` are those of the whole
        softmax."""
        no_dropout = torch.zeros(2, dtype=torch.uint64, device=q.device)
        dq, dk, dv = torch.ops.aten._flash_attention_backward(
            *(grad, q, k, v, out, lse),
            *(call.cu_queries, call.cu_keys, call.max_queries, call.max_keys),
            *(0.0, call.causal, no_dropout, torch.empty(0, device=q.device)),
        )
        return dq, dk, dv


class EfficientKernel:
    """torch's memory-efficient attention: float32 too, and older GPUs. Products of float32 are
    exact to about 2^-21 (three products in TF32). It reads repeated key heads, and log-sum-exps in
    a padded rectangle."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, call: VarlenCall) -> tuple[Tensor, Tensor]:
        group = q.shape[1] // k.shape[1]
        out, lse, *_ = _efficient_forward(
            *(q[None], _repeated(k, group)[None], _repeated(v, group)[None], None),
            *(call.cu_queries, call.cu_keys, call.max_queries, call.max_keys),
            *(0.0, int(call.causal), True),  # dropout, kind of mask, log-sum-exp
        )
        # From [sequences, heads, padded] to [heads, Q].
        return out[0], lse.transpose(0, 1).flatten(1).index_select(1, call.place_Q)

    def backward(
        self,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        call: VarlenCall,
    ) -> tuple[Tensor, Tensor, Tensor]:
        heads, group = q.shape[1], q.shape[1] // k.shape[1]
        num, width = len(call.num_queries), padded(call.max_queries)
        # Padding is infinite, so that its weights exp(score - lse) are 0.
        lse_HP = lse.new_full((heads, num * width), torch.inf).index_copy_(1, call.place_Q, lse)
        no_dropout = torch.zeros((), dtype=torch.long, device=q.device)
        dq, dk, dv, _ = _efficient_backward(
            *(grad[None], q[None], _repeated(k, group)[None], _repeated(v, group)[None], None),
            *(out[None], call.cu_queries, call.cu_keys, call.max_queries, call.max_keys),
            lse_HP.view(heads, num, width).transpose(0, 1).contiguous(),
            *(0.0, no_dropout, no_dropout, int(call.causal), False),
        )
        # Query heads of one key head add up their gradients of it.
        return dq[0], *(t[0].unflatten(1, (-1, group)).sum(2) for t in (dk, dv))


VarlenKernel = FlashKernel | EfficientKernel


def varlen_kernel_for(q_NHd: Tensor) -> VarlenKernel | None:
    """Returns the kernel for such queries, if there is one (none for float64)."""
    if not q_NHd.is_cuda or torch.version.hip is not None or q_NHd.shape[2] > MAX_HEAD_DIM:
        return None
    is_narrow = q_NHd.dtype in (torch.bfloat16, torch.float16)
    capability = torch.cuda.get_device_capability(q_NHd.device)
    if (
        is_narrow
        and capability >= FLASH_CAPABILITY
        and q_NHd.shape[2] % 8 == 0
        and torch.backends.cuda.is_flash_attention_available()
        # In versions of torch without it, the kernel's log-sum-exp is a padded rectangle.
        and find_spec("torch.nn.attention.varlen") is not None
    ):
        return FlashKernel()
    has_products = q_NHd.dtype in (torch.float32, torch.float16)
    is_aligned = q_NHd.shape[2] % (8 if is_narrow else 4) == 0
    if has_products and is_aligned and capability >= EFFICIENT_CAPABILITY:
        return EfficientKernel()
    return None


def _repeated(t_PKd: Tensor, group: int) -> Tensor:
    """Repeats each key head for the `group` query heads that read it."""
    return t_PKd if group == 1 else t_PKd.repeat_interleave(group, 1)


def padded(length: int) -> int:
    """Returns the next multiple of `LSE_MULTIPLE`."""
    return -(-length // LSE_MULTIPLE) * LSE_MULTIPLE


def _cumulative(lengths: Sequence[int], device: torch.device) -> Tensor:
    return uploaded(np.cumsum([0, *lengths], dtype=np.int32), device)


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
    """The calls of one micro-batch's attention, which are the same in every layer, level by level.

    The flat tokens are the segments one after another, so one causal call, whose sequences are the
    segments, is every segment's attention to itself. The inner segments with the same number of
    ancestors form a level; one call without a mask computes their descendants' attention to them:

        s q a b c d    segments s q | a b | c d      itself:  cu_queries 0 2 4 6    cu_keys 0 2 4 6
                       level 0: s q                  queries   a b c d    0 4        keys s q    0 2

    The number of calls does not depend on the number of segments. The trainer's queries are all
    tokens of the forest, the engine's are new tokens: the others have keys and values in its
    cache."""

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


def merge(out: Tensor, lse: Tensor, piece_out: Tensor, piece_lse: Tensor) -> None:
    """Adds a piece ``[N, heads, d]``, with its log-sum-exp ``[N, heads]``, to `out` and `lse`."""
    # Each output is divided by exp(its lse); the merged one by exp(total). Only differences of
    # log-sum-exps are exponentiated, so nothing overflows.
    total = lse.logaddexp(piece_lse)
    out.mul_((lse - total).exp_().unsqueeze(-1).to(out.dtype))
    out.add_(piece_out * (piece_lse - total).exp_().unsqueeze(-1).to(out.dtype))
    lse.copy_(total)


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
