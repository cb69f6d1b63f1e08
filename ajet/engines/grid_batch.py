"""Attention of a decode step in four batched products, whatever the number of segments. `KVBatch`
multiplies segment by segment, and only the written columns: that wastes nothing, but each segment
costs a dozen calls a layer, and bfloat16 products copy slices of memory. Here every operand is
contiguous, at the price of padding, which `GridBatch.fits` limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ajet.engines.kv_cache import (
    MASKED,
    CacheLayout,
    CacheSegment,
    GatheredCache,
    KVBatch,
    KVPool,
    SharedParts,
)
from ajet.engines.prefix_cache import Ids

MAX_PADDING = 2.0
"""A grid fits if padding multiplies the rows, and the shared slots, by at most this factor."""


@dataclass(frozen=True)
class SegmentGrid:
    """The rows of n segments as a rectangle ``n x rows``.

    `row_of_cell` has the row at each cell (row 0 as padding), `cell_of_row` the cell of each row;
    both are None if all segments have the same number of rows. `num_shared` is S.
    """

    num_segments: int
    num_shared: int
    row_of_cell: Tensor | None
    cell_of_row: Tensor | None

    @classmethod
    def of(cls, segments: Sequence[CacheSegment], pool: KVPool) -> "SegmentGrid":
        sizes = [segment.last - segment.first for segment in segments]
        num_shared = max(len(segment.slots) for segment in segments)
        if len(set(sizes)) == 1:
            return cls(len(sizes), num_shared, None, None)
        width = max(sizes)
        row_of_cell = np.zeros((len(sizes), width), np.int64)
        for number, segment in enumerate(segments):
            row_of_cell[number, : sizes[number]] = np.arange(segment.first, segment.last)
        cell_of_row = np.concatenate([n * width + np.arange(size) for n, size in enumerate(sizes)])
        return cls(
            len(sizes), num_shared, pool.tensor(row_of_cell.reshape(-1)), pool.tensor(cell_of_row)
        )

    def cells(self, of_rows: Tensor) -> Tensor:
        """Returns ``[kv_heads x n, rows x group, :]`` of ``[kv_heads, rows, group, :]``."""
        if self.row_of_cell is not None:
            of_rows = of_rows.index_select(1, self.row_of_cell)
        return of_rows.reshape(of_rows.shape[0] * self.num_segments, -1, of_rows.shape[3])

    def rows(self, of_cells: Tensor, heads: int, group: int) -> Tensor:
        """Returns ``[kv_heads, rows, group, :]``, the reverse of `cells`."""
        of_rows = of_cells.view(heads, -1, group, of_cells.shape[2])
        if self.cell_of_row is not None:
            of_rows = of_rows.index_select(1, self.cell_of_row)
        return of_rows


class GridBatch(KVBatch):
    """A `KVBatch` that computes all segments at once. What the rows of a segment share is padded to
    S slots, ``[kv_heads, n segments, S, d]``, and own parts include columns not yet written."""

    @staticmethod
    def fits(layout: CacheLayout) -> bool:
        """Returns whether the padding of this layout is within `MAX_PADDING`."""
        num_segments = len(layout.segments)
        most_rows = max(segment.last - segment.first for segment in layout.segments)
        lengths = [len(segment.slots) for segment in layout.segments]
        return num_segments * most_rows <= MAX_PADDING * len(layout.start_R) and num_segments * max(
            lengths
        ) <= MAX_PADDING * sum(lengths)

    def __init__(self, pool: KVPool, layout: CacheLayout, max_new_tokens: int) -> None:
        super().__init__(pool, layout, max_new_tokens)
        self._grid = SegmentGrid.of(self._segments, pool)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # `heads` are those of keys; `group` query heads share one of them.
        (rows, heads, d), group = k.shape, q.shape[1] // k.shape[1]
        own_k, own_v = self._k[layer].tensor, self._v[layer].tensor
        self._write(own_k, k)
        self._write(own_v, v)
        scaled = torch.empty(heads, rows, group, d, dtype=q.dtype, device=q.device)
        torch.mul(q.view(rows, heads, group, d).transpose(0, 1), d**-0.5, out=scaled)
        scores = torch.bmm(scaled.view(heads * rows, group, d), own_k.flatten(0, 1).mT)
        scores = scores.view(heads, rows, group, -1)
        # One softmax over [shared slots | own columns], so that no maximum has to be merged.
        [shared_k], [shared_v] = self._shared[layer]
        num_shared = shared_k.shape[2]
        if num_shared:
            common = torch.bmm(self._grid.cells(scaled), shared_k.flatten(0, 1).mT)
            scores = torch.cat((self._grid.rows(common, heads, group), scores), dim=3)
        probs = torch.softmax(scores.add_(self._mask), dim=3)
        own_probs = probs[..., num_shared:].reshape(heads * rows, group, -1)
        out = torch.bmm(own_probs, own_v.flatten(0, 1)).view(heads, rows, group, d)
        if num_shared:
            shared_probs = self._grid.cells(probs[..., :num_shared])
            common = torch.bmm(shared_probs, shared_v.flatten(0, 1))
            out += self._grid.rows(common, heads, group)
        return out.transpose(0, 1).reshape(rows, heads * group, d)

    def advance(self) -> None:
        super().advance()
        # In place, since a captured step reads this memory.
        self._mask[..., self._grid.num_shared + self.column].fill_(0)

    def _write(self, cached: Tensor, new: Tensor) -> None:
        """Writes keys, or values, ``[rows, kv_heads, d]`` to the current column."""
        cached[:, :, self.column] = new.transpose(0, 1)

    def _shared_parts(self, gathered: GatheredCache, k: Tensor, v: Tensor) -> SharedParts:
        return [gathered.stacked(k)], [gathered.stacked(v)]

    def _keep_segments(self, index: Ids) -> None:
        kept = self._remaining_segments(index)
        self._grid = SegmentGrid.of(self._segments, self._pool)
        num_shared = self._grid.num_shared
        if len(kept) == self._shared[0][0][0].shape[1]:
            return
        numbers = self._pool.tensor(np.array(kept, np.int64))

        def remaining(stacked: Tensor) -> Tensor:
            return stacked.index_select(1, numbers)[:, :, :num_shared].contiguous()

        self._shared = [([remaining(k)], [remaining(v)]) for [k], [v] in self._shared]

    def _padding_mask(self) -> Tensor:
        """Returns ``[1, rows, 1, S + columns]``: MASKED for padded shared slots, columns left of a
        row's first token, and columns that are not written yet."""
        shared = np.arange(max(len(segment.slots) for segment in self._segments))
        columns = np.arange(self.num_columns)
        own_hidden = (columns < self._start_R[:, None]) | (columns > self.column)
        hidden = np.concatenate((shared >= self._shared_R[:, None], own_hidden), axis=1)
        mask = np.where(hidden, MASKED, 0.0).astype(np.float32)
        return self._pool.tensor(mask).to(self._pool.k.dtype)[None, :, None]


class GraphBatch(GridBatch):
    """A `GridBatch` whose decode step can be captured and replayed (step_graph.py).

    A step's launches are the same, on the same memory, until `advance` adds columns or `keep` drops
    rows: the current column is read from a tensor, and the mask changes in place.
    """

    @staticmethod
    def layout_of(slots_R: list[Ids]) -> CacheLayout:
        """Lays out rows, given by their slots, in the fewest slots that make a grid which fits."""
        for smallest in (True, False):
            layout = CacheLayout.of(slots_R, smallest=smallest)
            if GridBatch.fits(layout):
                return layout
        return CacheLayout.one_segment(slots_R)

    def _columns_at_a_time(self, most: int) -> int:
        return 128  # more than elsewhere: the step is captured again after each addition

    def _write(self, cached: Tensor, new: Tensor) -> None:
        cached.index_copy_(2, self.column_1, new.transpose(0, 1).unsqueeze(2))
