"""Which keys the queries of an attention see, as tables for the compiled kernels. A segment is a
run of tokens with keys, of which the last ones have queries; it sees its own keys, causally, and
those of its ancestors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

KEYS = 64  # keys of a tile, as in kernels.c: a segment is padded to a multiple
BLOCK = 32  # queries of a block, as in kernels.c
# The least blocks of a part and the most parts: each part has memory for sums of all keys that its
# queries see.
MIN_PART, MAX_PARTS = 32, 16


@dataclass(frozen=True)
class AttentionSegment:
    """Where the queries and keys of a segment are; the queries are those of the last keys. `parent`
    is the index of the segment that it continues, -1 for none."""

    first_query: int
    num_queries: int
    first_key: int
    num_keys: int
    parent: int = -1


@dataclass(frozen=True)
class SegmentTable:
    """The tables of some segments, for `group` query heads to a key head, which are computed
    together: query ``token * group + g`` is that of the token and the g-th of these heads.
    Gradients of keys and values are sums over queries, by parts that are added in order, so results
    depend only on the table, not on the threads.

    `segments_S6` has the fields of each `AttentionSegment`, and before the parent its first cell
    among the padded keys. `blocks_B2` has the segment and the first query of each block. Part p is
    the blocks ``starts_P[p]`` to ``starts_P[p + 1] - 1``; its sums for segment s begin at cell
    ``cells_PS[p, s]`` of `num_cells`, or are not needed (-1)."""

    segments_S6: Tensor
    blocks_B2: Tensor
    starts_P: Tensor
    cells_PS: Tensor
    num_padded: int
    num_cells: int

    @classmethod
    def of(cls, segments: Sequence[AttentionSegment], group: int) -> "SegmentTable":
        sizes = np.array([padded(segment.num_keys) for segment in segments], np.int64)
        table_S6 = np.array(
            [
                (s.first_query, s.num_queries, s.first_key, s.num_keys, int(cell), s.parent)
                for s, cell in zip(segments, np.cumsum(sizes) - sizes, strict=True)
            ],
            np.int64,
        )
        blocks = [
            (number, first)
            for number, segment in enumerate(segments)
            for first in range(0, segment.num_queries * group, BLOCK)
        ]
        step = max(MIN_PART, -(-len(blocks) // MAX_PARTS))
        starts = [*range(0, len(blocks), step), len(blocks)]
        # A part has cells only for the segments that its queries see.
        seen_PS = _seen(segments, [[s for s, _ in blocks[at : at + step]] for at in starts[:-1]])
        sizes_PS = (seen_PS * sizes).reshape(-1)
        cells_PS = np.where(seen_PS, (np.cumsum(sizes_PS) - sizes_PS).reshape(seen_PS.shape), -1)
        return cls(
            torch.from_numpy(table_S6),
            torch.tensor(blocks),
            torch.tensor(starts),
            torch.from_numpy(cells_PS),
            int(sizes.sum()),
            int(sizes_PS.sum()),
        )


def padded(num_keys: int) -> int:
    """Returns the next multiple of `KEYS`."""
    return -(-num_keys // KEYS) * KEYS


def _seen(
    segments: Sequence[AttentionSegment], segments_of_parts: Sequence[Sequence[int]]
) -> NDArray[np.bool_]:
    """Tells which segments each part sees: those of its blocks, and their ancestors."""
    seen_PS = np.zeros((len(segments_of_parts), len(segments)), bool)
    for part, numbers in enumerate(segments_of_parts):
        for number in set(numbers):
            # Up to the first ancestor that was seen before: those above it were, too.
            while number >= 0 and not seen_PS[part, number]:
                seen_PS[part, number] = True
                number = segments[number].parent
    return seen_PS
