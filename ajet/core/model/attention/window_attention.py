"""Attention over a flattened trie where a token sees only the last `window` tokens of its path, or
all tokens of its image (Gemma 3). Everything is plain torch, which has the backward pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ajet.core.model.attention.trie import Forest, IntArray, parents_of
from ajet.core.model.precision import to_wide_dtype

MAX_BLOCK = 256  # queries of a block, at most
Spans = Sequence[tuple[int, int]]  # start and stop of flat tokens, in order


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """The blocks of one micro-batch, which are the same in every layer with this window. A block is
    some queries of one segment, or an image; its keys are the last ones on its path, in whatever
    segments, so the cost of a token does not depend on the length of its path:

        path of a segment     0 1 2 3 4 5 6 7 8 9       window 4, a block of 3 queries
        queries                           6 7 8
        their keys                  3 4 5 6 7 8         masked to a band: 6 sees 3 to 6

    `queries_BQ` and `keys_BK` are flat tokens, padded with token 0; `sees_BQK` says which keys a
    query sees. `tokens_M` are the queries in order, `place_M` their indices in all blocks."""

    tokens_M: Tensor
    queries_BQ: Tensor
    keys_BK: Tensor
    sees_BQK: Tensor
    place_M: Tensor

    @classmethod
    def of(cls, forest: Forest, window: int, device: torch.device) -> WindowPlan:
        size = min(window, MAX_BLOCK)
        spans = [
            (at, min(at + size, segment.stop))
            for segment in forest.segments
            for at in range(segment.start, segment.stop, size)
        ]
        return cls._for_spans(forest, spans, window, both_ways=False, device=device)

    @classmethod
    def for_images(
        cls, forest: Forest, images: Spans, window: int | None, device: torch.device
    ) -> WindowPlan:
        """Returns the plan of the tokens of `images` alone; each is a part of one segment."""
        return cls._for_spans(forest, images, window or len(forest), both_ways=True, device=device)

    @classmethod
    def _for_spans(
        cls, forest: Forest, spans: Spans, window: int, *, both_ways: bool, device: torch.device
    ) -> WindowPlan:
        blocks: list[tuple[IntArray, IntArray]] = []
        paths: list[IntArray] = []  # of each segment: the flat tokens from the root to its end
        left = deque(spans)
        for segment, parent in zip(forest.segments, parents_of(forest.segments), strict=True):
            tokens = np.arange(segment.start, segment.stop)
            path = tokens if parent < 0 else np.concatenate((paths[parent], tokens))
            paths.append(path)
            while left and left[0][0] < segment.stop:
                start, stop = left.popleft()
                # Indices in `path`: the keys end with the block's last query, and begin window - 1
                # tokens before its first.
                end = len(path) - (segment.stop - stop)
                first = max(0, end - (stop - start) - window + 1)
                blocks.append((np.arange(start, stop), path[first:end]))
        queries_BQ, is_query_BQ = _padded([queries for queries, _ in blocks])
        keys_BK, is_key_BK = _padded([keys for _, keys in blocks])
        # Positions are depths on the path, so their difference is the distance along it.
        distance = forest.positions_N[queries_BQ][:, :, None] - forest.positions_N[keys_BK][:, None]
        sees_BQK = (distance < window) & is_key_BK[:, None]
        if not both_ways:
            sees_BQK &= distance >= 0
        sees_BQK |= ~is_query_BQ[:, :, None]  # a row that sees nothing would be NaN
        tokens_M = queries_BQ[is_query_BQ]  # blocks are in the order of their tokens
        arrays = (tokens_M, queries_BQ, keys_BK, sees_BQK, np.flatnonzero(is_query_BQ))
        return cls(*(torch.from_numpy(array).to(device) for array in arrays))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Tensor:
        """Returns the attention ``[M, heads, d]``. `sinks` ``[heads]`` are scores that take a part
        of each softmax and add nothing to the output."""
        group = q.shape[1] // k.shape[1]
        q_BHQd = q[self.queries_BQ].transpose(1, 2)
        k_BHKd, v_BHKd = (
            t[self.keys_BK].repeat_interleave(group, dim=2).transpose(1, 2) for t in (k, v)
        )
        sees = self.sees_BQK.unsqueeze(1)
        if sinks is None:
            out = scaled_dot_product_attention(q_BHQd, k_BHKd, v_BHKd, attn_mask=sees)
        else:
            scores = to_wide_dtype(q_BHQd @ k_BHKd.mT) * q.shape[2] ** -0.5
            scores = scores.masked_fill(~sees, float("-inf"))
            column = to_wide_dtype(sinks)[:, None, None].expand(*scores.shape[:3], 1)
            # One more key, whose weight is dropped after the softmax.
            weights = torch.cat((scores, column), dim=-1).softmax(-1)[..., :-1]
            out = weights.to(v.dtype) @ v_BHKd
        return out.transpose(1, 2).flatten(0, 1).index_select(0, self.place_M)


def _padded(arrays: list[IntArray]) -> tuple[IntArray, NDArray[np.bool_]]:
    """Returns the arrays as rows of one, padded with 0, and a mask that is false at padding."""
    lengths = np.array([len(array) for array in arrays])
    is_real = np.arange(lengths.max()) < lengths[:, None]
    padded = np.zeros(is_real.shape, np.int64)
    padded[is_real] = np.concatenate(arrays)
    return padded, is_real
