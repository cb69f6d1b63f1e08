"""Which keys the queries of an attention see, as tables for the compiled kernels.

    segment      tokens     sees
    0  s q       0 1        its own, causally
    1  a b       2 3        its own, causally, and those of its parent 0
    2  c d e     4 5 6      its own, causally, and those of its parent 0

A segment is a run of tokens with keys, of which the last ones have queries. The queries of all
heads that share a key head are computed together, in blocks of `BLOCK`: query ``token * group + g``
is that of the token and the g-th of these heads.

The gradients of keys and values are sums over queries. Blocks are divided into parts, whose sums
are added up in their order: what is computed depends on the table alone, not on the threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

KEYS = 64
"""The keys of a tile, as in kernels.c: a segment is padded to a multiple of them."""
BLOCK = 32
"""The queries of a block, as there."""
MIN_PART, MAX_PARTS = 32, 16
"""The blocks of a part at least, and the parts at most: each has sums of its own for all keys that
its queries see."""


@dataclass(frozen=True)
class AttentionSegment:
    """Says where the queries and keys of a segment are: the queries are those of the last keys.

    `parent` is the number of the segment that it continues, which comes before it; -1 for none.
    """

    first_query: int
    num_queries: int
    first_key: int
    num_keys: int
    parent: int = -1


@dataclass(frozen=True)
class SegmentTable:
    """Holds the tables of some segments, for `group` query heads to a key head.

    `segments_S6` has the numbers of each `AttentionSegment`, with its first cell among the padded
    keys before the parent. `blocks_B2` has the segment and the first query of each block. Part p is
    the blocks ``starts_P[p]`` to ``starts_P[p + 1] - 1``; its sums for segment s begin at
    ``cells_PS[p, s]`` of `num_cells`, or it has none (-1).
    """

    segments_S6: Tensor
    blocks_B2: Tensor
    starts_P: Tensor
    cells_PS: Tensor
    num_padded: int
    num_cells: int

    @classmethod
    def of(cls, segments: Sequence[AttentionSegment], group: int) -> "SegmentTable":
        """Divides the queries into blocks and parts."""
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
        seen_PS = _seen(segments, [[s for s, _ in blocks[at : at + step]] for at in starts[:-1]])
        taken_PS = (seen_PS * sizes).reshape(-1)
        cells_PS = np.where(seen_PS, (np.cumsum(taken_PS) - taken_PS).reshape(seen_PS.shape), -1)
        return cls(
            torch.from_numpy(table_S6),
            torch.tensor(blocks),
            torch.tensor(starts),
            torch.from_numpy(cells_PS),
            int(sizes.sum()),
            int(taken_PS.sum()),
        )


def padded(num_keys: int) -> int:
    """Returns the next multiple of `KEYS`."""
    return -(-num_keys // KEYS) * KEYS


def _seen(
    segments: Sequence[AttentionSegment], segments_of_parts: Sequence[Sequence[int]]
) -> NDArray[np.bool_]:
    """Tells for each part, given by the segments of its blocks, which segments they see."""
    seen_PS = np.zeros((len(segments_of_parts), len(segments)), bool)
    for part, numbers in enumerate(segments_of_parts):
        for number in set(numbers):
            while number >= 0 and not seen_PS[part, number]:
                seen_PS[part, number] = True
                number = segments[number].parent
    return seen_PS
