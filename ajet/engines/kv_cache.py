"""Storage of keys and values, and attention over them.

KVPool    [layers, kv_heads, slots, d]           every cached token once, at the slot that the
                                                 prefix cache has assigned
KVBatch   [layers, kv_heads, rows, columns, d]   the rows that are being decoded
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ajet.core.model.allocator import mapped
from ajet.core.model.attention.trie import common_length_of_ids
from ajet.core.model.transfer import uploaded
from ajet.engines.prefix_cache import Ids

MIN_SHARED = 32
"""In tokens. Shorter common prefixes are copied: a segment costs a few small products a layer."""
SEGMENT_COST, OWN_COST = 32, 1.25
"""The cost of a segment and of a slot of an own part in `_smallest_segments`, where a shared slot
costs 1: segments are padded to whole tiles, own parts to the longest of the batch."""
MASKED = -1e30
"""Finite, so that a query with only masked columns gives unused numbers and not NaN."""
MAPPED_BYTES = 1 << 25
"""CPU memory from this size on is mapped (core/model/allocator.py)."""


def empty(like: Tensor, num: int) -> Tensor:
    """Returns `num` uninitialised elements with the dtype and device of `like`. Large blocks on a
    CPU are not from the heap, which batches of varying sizes would fragment."""
    is_small = num * like.itemsize < MAPPED_BYTES
    return like.new_empty(num) if is_small or like.device.type != "cpu" else mapped(like, num)


class BatchMemory:
    """Memory that successive batches reuse; it grows when necessary."""

    def __init__(self, like: Tensor) -> None:
        self._memory = like.new_empty(0)
        self._num_taken = 0

    def begin(self, num: int) -> None:
        """Starts again with room for `num` elements; earlier parts must not be used any more."""
        if len(self._memory) < num:
            self._memory = self._memory.new_empty(0)  # free it before more is allocated
            self._memory = empty(self._memory, num)
        self._num_taken = 0

    def take(self, num: int) -> Tensor:
        """Returns the next `num` elements."""
        first, self._num_taken = self._num_taken, self._num_taken + num
        assert self._num_taken <= len(self._memory), "more than begin() reserved"
        return self._memory[first : self._num_taken]


class KVPool:
    """Keys and values by slot, in memory that is allocated when needed. Slot 0 is zero and stands
    for padding."""

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._num_slots = num_slots + 1
        self.k = torch.empty(num_layers, num_kv_heads, 0, head_dim, dtype=dtype, device=device)
        self.v = torch.empty_like(self.k)
        self.batch_memory = BatchMemory(self.k)

    def allocate(self) -> None:
        """Allocates the slots if necessary. On a CPU, slots never written take no memory."""
        if not self.k.numel():
            self.k, self.v = self._empty(self._num_slots), self._empty(self._num_slots)
            self.k[:, :, 0] = 0
            self.v[:, :, 0] = 0

    def free(self) -> None:
        """Frees the slots and the batch's memory; no batch may exist."""
        self.k, self.v = self._empty(0), self._empty(0)
        self.batch_memory = BatchMemory(self.k)

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Stores keys and values ``[N, kv_heads, d]`` of one layer at N slots."""
        self.k[layer].index_copy_(1, slots, k.transpose(0, 1))
        self.v[layer].index_copy_(1, slots, v.transpose(0, 1))

    def _empty(self, num_slots: int) -> Tensor:
        layers, heads, _, d = self.k.shape
        return empty(self.k, layers * heads * num_slots * d).view(layers, heads, num_slots, d)

    def tensor(self, values: NDArray[Any]) -> Tensor:
        """Returns an array as a tensor on the pool's device."""
        return uploaded(np.ascontiguousarray(values), self.k.device)


@dataclass(frozen=True)
class CacheSegment:
    """Rows ``first .. last - 1`` all begin with these `slots` (possibly none)."""

    first: int
    last: int
    slots: Ids


@dataclass(frozen=True)
class CacheLayout:
    """The slots of a batch's rows, cut into shared segments and right-aligned own parts.

        row 0   |                        | . . question 1, reply a >
        row 1   |  segment, stored once  | . . question 1, reply b >    . = padding, masked
        row 2   |                        | question 2, reply c     >

    A segment is what rows have in common (the system prompt and the tools): it is multiplied with
    the queries of all its rows in one product. All rows write their new token to the same column.
    Rows must be sorted by their tokens, so that rows with a common prefix are neighbours."""

    segments: list[CacheSegment]
    shared_R: Ids
    """The number of slots of each row that are in its segment."""
    start_R: Ids
    """The first column of each row's own part in `own_RT`."""
    own_RT: Ids
    """The slots of the own parts, padded on the left with slot 0."""

    @classmethod
    def of(cls, slots_R: list[Ids], *, smallest: bool = False) -> "CacheLayout":
        """Lays out rows, given by their slots, with few segments, where each costs calls, or with
        few slots in all. One large segment stores the system prompt once and every question many
        times; one per task stores each question once and the system prompt once per task."""
        cut = _smallest_segments if smallest else _segments_by_beginning
        return cls._cut(slots_R, cut(slots_R))

    @classmethod
    def one_segment(cls, slots_R: list[Ids]) -> "CacheLayout":
        """Lays out rows, given by their slots, with one segment of what all of them share."""
        shared = [common_length_of_ids(a, b) for a, b in pairwise(slots_R)]
        common = slots_R[0][: min(shared, default=0)]
        return cls._cut(slots_R, [CacheSegment(0, len(slots_R), common)])

    @classmethod
    def _cut(cls, slots_R: list[Ids], segments: list[CacheSegment]) -> "CacheLayout":
        shared_R = np.concatenate(
            [np.full(s.last - s.first, len(s.slots), np.int64) for s in segments]
        )
        own_R = np.array([len(slots) for slots in slots_R], np.int64) - shared_R
        width = int(own_R.max())
        own_RT = np.zeros((len(slots_R), width), np.int64)
        for row, slots in enumerate(slots_R):
            own_RT[row, width - own_R[row] :] = slots[shared_R[row] :]
        return cls(segments, shared_R, width - own_R, own_RT)

    def num_slots(self, max_new_tokens: int) -> int:
        """Returns the slots that a batch takes if each row samples `max_new_tokens`."""
        rows, width = self.own_RT.shape
        num_shared = sum(len(segment.slots) for segment in self.segments)
        return num_shared + rows * (width + max_new_tokens)


def _smallest_segments(slots_R: list[Ids]) -> list[CacheSegment]:
    """Cuts the rows into the segments of least total cost; a segment of one row has all its slots.

    Dynamic programming: the cost of the first j rows is the minimum, over the row i where their
    last segment begins, of the cost of the first i rows plus the cost of that segment.
    """
    lengths_R = np.array([len(slots) for slots in slots_R], np.int64)
    shared_R = np.array([common_length_of_ids(a, b) for a, b in pairwise(slots_R)], np.int64)
    ends_R = np.concatenate(([0], np.cumsum(lengths_R)))
    # costs[j]: of the first j rows. begins[j - 1]: where the last segment of these begins.
    costs, begins = np.zeros(1), []
    for end in range(1, len(slots_R) + 1):
        # common[first]: the length that the rows first .. end - 1 share, a minimum from the right.
        common = np.append(shared_R[: end - 1], lengths_R[end - 1])[::-1]
        common = np.minimum.accumulate(common)[::-1]
        num_own = ends_R[end] - ends_R[:end] - common * np.arange(end, 0, -1)
        totals = costs + common + OWN_COST * num_own + SEGMENT_COST
        begins.append(int(totals.argmin()))
        costs = np.append(costs, totals[begins[-1]])
    segments: list[CacheSegment] = []
    end = len(slots_R)
    while end:  # back from the last row
        first = begins[end - 1]
        length = min(shared_R[first : end - 1], default=lengths_R[first])
        segments.insert(0, CacheSegment(first, end, slots_R[first][:length]))
        end = first
    return segments


def _segments_by_beginning(slots_R: list[Ids]) -> list[CacheSegment]:
    """Cuts the rows into segments where neighbours share fewer than `MIN_SHARED` slots."""
    shared = [common_length_of_ids(a, b) for a, b in pairwise(slots_R)]
    cuts = [i + 1 for i, length in enumerate(shared) if length < MIN_SHARED]
    segments: list[CacheSegment] = []
    for first, last in pairwise([0, *cuts, len(slots_R)]):
        length = min(shared[first : last - 1], default=0)
        if segments and not length and not len(segments[-1].slots):
            # Neighbouring segments that share nothing are merged: each costs calls.
            segments[-1] = CacheSegment(segments[-1].first, last, segments[-1].slots)
        else:
            segments.append(CacheSegment(first, last, slots_R[first][:length]))
    return segments


SharedParts = tuple[list[Tensor], list[Tensor]]
"""One layer's shared keys and shared values: a tensor for each segment, or one for all."""


class GatheredCache:
    """Gathers one layer's keys or values from the pool: shared parts once, own parts for each
    row."""

    def __init__(self, pool: KVPool, layout: CacheLayout) -> None:
        self._pool = pool
        self._shape = layout.own_RT.shape
        self._own = pool.tensor(layout.own_RT.reshape(-1))
        self._segments = layout.segments

    def own(self, source: Tensor) -> Tensor:
        """Returns the own parts ``[kv_heads, rows, columns, d]``."""
        return source.index_select(1, self._own).unflatten(1, self._shape)

    def shared(self, source: Tensor) -> list[Tensor]:
        """Returns ``[kv_heads, P, d]`` for each segment, which has P slots."""
        return [source.index_select(1, slots) for slots in self._shared]

    def joined(self, source: Tensor) -> Tensor:
        """Returns ``[kv_heads, P, d]`` with the segments one after another."""
        return source.index_select(1, self._joined)

    def stacked(self, source: Tensor) -> Tensor:
        """Returns ``[kv_heads, n, S, d]`` for n segments, padded with zeros to S slots."""
        num_segments = len(self._segments)
        shape = (num_segments, len(self._stacked) // num_segments)
        return source.index_select(1, self._stacked).unflatten(1, shape)

    @cached_property
    def _shared(self) -> list[Tensor]:
        return [self._pool.tensor(segment.slots) for segment in self._segments]

    @cached_property
    def _joined(self) -> Tensor:
        return self._pool.tensor(np.concatenate([segment.slots for segment in self._segments]))

    @cached_property
    def _stacked(self) -> Tensor:
        lengths = [len(segment.slots) for segment in self._segments]
        slots = np.zeros((len(lengths), max(lengths)), np.int64)
        for number, segment in enumerate(self._segments):
            slots[number, : lengths[number]] = segment.slots
        return self._pool.tensor(slots.reshape(-1))


def attend_shared(
    q: Tensor,
    own_kv: tuple[Tensor, Tensor],
    shared: tuple[list[Tensor], list[Tensor]],
    segments: list[CacheSegment],
    mask: Tensor,
) -> Tensor:
    """Returns attention of ``q [kv_heads, rows, queries, group, d]`` over [segment | own columns].

    `own_kv` are keys and values ``[kv_heads, rows, columns, d]``; `mask` is added to the own scores
    and broadcasts over ``[kv_heads, rows, queries, group, columns]``.
    """
    heads, rows, queries, group, d = q.shape
    q = (q * d**-0.5).reshape(heads, rows, queries * group, d)
    k, v = own_kv
    scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2))
    scores = scores.view(heads, rows, queries, group, -1).add_(mask).flatten(2, 3)
    outs = []
    # For each segment one softmax over both parts: first its shared keys, then each row's own.
    for segment, k_shared, v_shared in zip(segments, *shared, strict=True):
        at = slice(segment.first, segment.last)
        num_shared = k_shared.shape[1]
        joined = scores[:, at].flatten(1, 2)
        if num_shared:
            common = torch.bmm(q[:, at].flatten(1, 2), k_shared.transpose(1, 2))
            joined = torch.cat((common, joined), dim=-1)
        probs = torch.softmax(joined, dim=-1)  # computed in float32 if these are narrower
        own_probs = probs[..., num_shared:].unflatten(1, (-1, queries * group))
        v_own = v[:, at]
        if v_own.stride(0) == v_own.shape[1] * v_own.stride(1):
            flat = torch.bmm(own_probs.flatten(0, 1), v_own.flatten(0, 1))
            out = flat.unflatten(0, v_own.shape[:2])
        else:  # a slice of rows, which `flatten` would copy: head by head
            out = torch.stack([torch.bmm(p, x) for p, x in zip(own_probs, v_own, strict=True)])
        if num_shared:
            out = torch.baddbmm(out.flatten(1, 2), probs[..., :num_shared], v_shared)
        outs.append(out.view(heads, -1, queries, group, d))
    return outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)


class OwnParts:
    """One layer's own keys or own values: ``tensor [kv_heads, rows, columns, d]``, contiguous.

    Its memory is for all columns that the rows can ever have; they are added `growth` at a time.
    """

    def __init__(self, filled: Tensor, memory: Tensor, growth: int) -> None:
        self._memory, self._growth = memory, growth
        self.tensor = self._placed(filled)

    def grow(self) -> None:
        """Adds columns."""
        self.tensor = self._placed(self.tensor.clone())

    def keep(self, index: Tensor, first: int, end: int) -> None:
        """Drops all other rows, and the columns outside of ``first .. end - 1``."""
        self.tensor = self._placed(self.tensor[:, :, first:end].index_select(1, index))

    def _placed(self, filled: Tensor) -> Tensor:
        """Copies to the start of the memory, with 1 to `growth` more columns of zeros."""
        heads, rows, columns, d = filled.shape
        shape = (heads, rows, in_steps(columns + 1, self._growth), d)
        placed = self._memory[: math.prod(shape)].view(shape)
        placed[:, :, :columns] = filled
        placed[:, :, columns:] = 0
        return placed


def in_steps(columns: int, growth: int) -> int:
    """Rounds up to a multiple of `growth`."""
    return -(-columns // growth) * growth


class KVBatch:
    """The rows that are being decoded. Each step writes one column; the Decoder calls `attend` for
    each layer."""

    def __init__(self, pool: KVPool, layout: CacheLayout, max_new_tokens: int) -> None:
        """Gathers the rows from the pool. Each can get `max_new_tokens` more tokens."""
        self._pool = pool
        gathered, memory = GatheredCache(pool, layout), pool.batch_memory
        self._segments = layout.segments
        layers, heads, _, d = pool.k.shape
        rows, columns = layout.own_RT.shape
        growth = self._columns_at_a_time(columns + max_new_tokens + 1)
        num_own = heads * rows * in_steps(columns + max_new_tokens + 1, growth) * d
        # 2: keys and values, for all layers, with the own parts at their largest.
        memory.begin(2 * layers * (num_own + heads * d * self._num_placed(layout)))
        self._shared = [
            self._shared_parts(gathered, k, v) for k, v in zip(pool.k, pool.v, strict=True)
        ]
        self._k = [OwnParts(gathered.own(k), memory.take(num_own), growth) for k in pool.k]
        self._v = [OwnParts(gathered.own(v), memory.take(num_own), growth) for v in pool.v]
        self._shared_R, self._start_R = layout.shared_R, layout.start_R
        self.column = layout.own_RT.shape[1]
        """The column that the next step writes."""
        self.column_1 = pool.tensor(np.array([self.column]))
        """The current column on the device, where a captured step reads it; set before each
        step."""
        self._mask = self._padding_mask()

    @property
    def num_rows(self) -> int:
        """The number of rows, including finished ones that were not dropped yet."""
        return len(self._start_R)

    @property
    def num_columns(self) -> int:
        """The number of columns of the own parts, including those not yet written."""
        return self._k[0].tensor.shape[2]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Writes one new token per row to the current column, and returns its attention ``[rows,
        heads, d]`` over the tokens before and itself. All layers come before `advance`."""
        heads, end = k.shape[1], self.column + 1
        own_k, own_v = self._k[layer].tensor, self._v[layer].tensor
        own_k[:, :, self.column] = k.transpose(0, 1)
        own_v[:, :, self.column] = v.transpose(0, 1)
        out = attend_shared(
            q.view(q.shape[0], heads, 1, -1, q.shape[2]).transpose(0, 1),
            (own_k[:, :, :end], own_v[:, :, :end]),
            self._shared[layer],
            self._segments,
            self._mask[..., :end],
        )
        return out.permute(1, 2, 0, 3, 4).reshape(q.shape)

    def advance(self) -> None:
        """Moves to the next column."""
        self.column += 1
        if self.column == self.num_columns:
            for part in (*self._k, *self._v):
                part.grow()
            self._mask = self._padding_mask()

    def keep(self, index: Ids) -> None:
        """Drops all rows but these, in ascending order, and the columns that none of them uses."""
        index_R = self._pool.tensor(index)
        first = int(self._start_R[index].min())
        for part in (*self._k, *self._v):
            part.keep(index_R, first, self.column)
        self.column -= first
        self._start_R, self._shared_R = self._start_R[index] - first, self._shared_R[index]
        self._keep_segments(index)
        self._mask = self._padding_mask()

    def save(self, rows_N: Ids, positions_N: Ids, slots_N: Ids) -> None:
        """Copies N tokens, given by row and position in the row, to N slots of the pool. They must
        be in own parts."""
        # Position p of a row is in column start + p - shared.
        columns = self._start_R[rows_N] + positions_N - self._shared_R[rows_N]
        assert (columns >= self._start_R[rows_N]).all() and (columns < self.column).all()
        rows, cols, slots = (self._pool.tensor(x) for x in (rows_N, columns, slots_N))
        for layer, (k, v) in enumerate(zip(self._k, self._v, strict=True)):
            self._pool.k[layer].index_copy_(1, slots, k.tensor[:, rows, cols])
            self._pool.v[layer].index_copy_(1, slots, v.tensor[:, rows, cols])

    def num_shared(self, row: int) -> int:
        """Returns how many of this row's first tokens are in its segment, where `save` cannot copy
        them."""
        return int(self._shared_R[row])

    def _columns_at_a_time(self, most: int) -> int:
        """Returns how many columns are added at a time; there will never be more than `most`."""
        return 32

    def _num_placed(self, layout: CacheLayout) -> int:
        """Returns the shared slots that `_shared_parts` takes from the batch's memory."""
        return 0

    def _shared_parts(self, gathered: GatheredCache, k: Tensor, v: Tensor) -> SharedParts:
        """Returns the shared parts of one layer of the pool as `attend` reads them."""
        return gathered.shared(k), gathered.shared(v)

    def _keep_segments(self, index: Ids) -> None:
        kept = self._remaining_segments(index)
        self._shared = [([k[i] for i in kept], [v[i] for i in kept]) for k, v in self._shared]

    def _remaining_segments(self, index: Ids) -> list[int]:
        """Reduces the segments to these rows, and returns the numbers of those that still have
        rows."""
        kept, segments = [], []
        for number, segment in enumerate(self._segments):
            # The new numbers of the segment's rows: `index` is ascending.
            first, last = np.searchsorted(index, [segment.first, segment.last])
            if last > first:
                kept.append(number)
                segments.append(CacheSegment(int(first), int(last), segment.slots))
        self._segments = segments
        return kept

    def _padding_mask(self) -> Tensor:
        """Returns ``[1, rows, 1, 1, columns]``: MASKED left of each row's first own token."""
        columns = np.arange(self.num_columns)
        mask = np.where(columns < self._start_R[:, None], MASKED, 0.0).astype(np.float32)
        return self._pool.tensor(mask).to(self._pool.k.dtype)[None, :, None, None]
