"""A token trie over the rows of a micro-batch, flattened in depth-first order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


def common_length(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Returns the length of the common prefix of two lists or two tuples."""
    if a == b[: len(a)]:  # the usual case, and much faster than the comparison below
        return len(a)
    pairs = enumerate(zip(a, b, strict=False))
    return next((index for index, (x, y) in pairs if x != y), min(len(a), len(b)))


def common_length_of_ids(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """Returns the length of the common prefix of two arrays."""
    length = min(len(a), len(b))
    differs = np.flatnonzero(a[:length] != b[:length])
    return int(differs[0]) if len(differs) else length


IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TrieSegment:
    """A run without branches: ``start:stop`` are its flat tokens, ``stop:end`` its descendants."""

    start: int
    stop: int
    end: int


@dataclass(frozen=True, slots=True)
class Forest:
    """Flat tokens with their depths, the segments, and each row's flat tokens (in input order).

        rows            flat tokens   s q a b c d        segments (own tokens; end of the subtree)
        s q a b         positions     0 1 2 3 2 3        s q [0:2] end 6
        s q c d                                          a b [2:4] end 4     c d [4:6] end 6

    Every distinct prefix is one flat token. A segment is a run without branches; its descendants
    are the flat tokens ``stop:end``, so "attends to ancestors" is a list of ranges."""

    token_ids_N: IntArray
    positions_N: IntArray
    segments: tuple[TrieSegment, ...]
    row_nodes: tuple[IntArray, ...]

    def __len__(self) -> int:
        return len(self.token_ids_N)


def parents_of(segments: Sequence[TrieSegment]) -> list[int]:
    """Returns the index of each segment's parent, -1 for a root."""
    # Segments are in the order of their tokens, so the parent is the last one that has not ended.
    parents: list[int] = []
    path: list[int] = []
    for number, segment in enumerate(segments):
        while path and segments[path[-1]].end <= segment.start:
            path.pop()
        parents.append(path[-1] if path else -1)
        path.append(number)
    return parents


def lexicographic(rows: Sequence[IntArray]) -> list[int]:
    """Returns the row numbers in token order (big-endian bytes compare as numbers do)."""
    return sorted(range(len(rows)), key=lambda i: rows[i].astype(">u8").tobytes())


def trie_of_rows(rows: Sequence[IntArray]) -> Forest:
    """Builds a forest in which each distinct prefix occurs once."""
    return _flatten(rows, lexicographic(rows), share=True)


def forest_of_rows(rows: Sequence[IntArray]) -> Forest:
    """Builds a forest in which each row is a separate tree and nothing is shared."""
    return _flatten(rows, range(len(rows)), share=False)


def _flatten(rows: Sequence[IntArray], order: Sequence[int], share: bool) -> Forest:
    builder = _SegmentBuilder()
    row_nodes: list[IntArray] = [np.empty(0, np.int64)] * len(rows)
    new_tokens: list[IntArray] = []
    depths: list[IntArray] = []
    previous: int | None = None
    for i in order:
        shared = 0
        if share and previous is not None:
            shared = common_length_of_ids(rows[previous], rows[i])
        # The row's nodes: the shared prefix of the row before, then new flat tokens.
        start = builder.branch(shared, len(rows[i]))
        reused = row_nodes[previous][:shared] if previous is not None else row_nodes[i]
        row_nodes[i] = np.concatenate((reused, np.arange(start, builder.size)))
        new_tokens.append(rows[i][shared:])
        depths.append(np.arange(shared, len(rows[i])))
        previous = i
    return Forest(
        np.concatenate(new_tokens), np.concatenate(depths), builder.finish(), tuple(row_nodes)
    )


class _SegmentBuilder:
    """Builds segments; those on the path of the last row are open: ``[start, stop, depth of
    start]``."""

    def __init__(self) -> None:
        self.size = 0
        self._open: list[list[int]] = []
        self._closed: list[TrieSegment] = []

    def branch(self, depth: int, row_length: int) -> int:
        """Branches off the next row at `depth`; returns the flat index of its first new token."""
        # Segments that begin at or below the branch are complete: their descendants end here.
        while self._open and self._open[-1][2] >= depth:
            start, stop, _ = self._open.pop()
            self._closed.append(TrieSegment(start, stop, self.size))
        if self._open:
            start, stop, top = self._open[-1]
            cut = start + depth - top
            if cut < stop:  # the branch is inside this segment: its lower part becomes a child
                self._closed.append(TrieSegment(cut, stop, self.size))
                self._open[-1][1] = cut
        first = self.size
        self.size += row_length - depth
        if self.size > first:
            self._open.append([first, self.size, depth])
        return first

    def finish(self) -> tuple[TrieSegment, ...]:
        self.branch(0, 0)  # closes all open segments
        return tuple(sorted(self._closed, key=lambda s: s.start))
