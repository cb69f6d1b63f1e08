"""Attention of a decode step on a CPU in one call of the compiled kernels.

    segments      for each: keys [kv_heads, S, d], and values in tiles (Kernels.shared_values)
    own parts     [kv_heads, rows, columns, d], as in KVBatch

Shared parts are multiplied in tiles of queries, own parts row by row, with one softmax over both.
Segments of different sizes cost neither padding (as in grid_batch.py) nor calls (as in
kv_cache.py).
"""

import torch
from torch import Tensor

from ajet.core.model.kernels.functions import attention_kernels_for
from ajet.core.model.kernels.segments import padded
from ajet.engines.kv_cache import CacheLayout, GatheredCache, KVBatch, KVPool, SharedParts
from ajet.engines.prefix_cache import Ids


class TiledBatch(KVBatch):
    """A `KVBatch` with the compiled attention kernels."""

    @staticmethod
    def supports(pool: KVPool) -> bool:
        """Returns whether the kernels can serve the pool's device, dtype and head size."""
        return attention_kernels_for(pool.k) is not None

    def __init__(self, pool: KVPool, layout: CacheLayout, max_new_tokens: int) -> None:
        kernels = attention_kernels_for(pool.k)
        assert kernels is not None, "supports() must be true"
        self._kernels = kernels
        super().__init__(pool, layout, max_new_tokens)
        self._segments_S3 = self._segment_table()

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._kernels.attend(
            (q, k, v),
            (self._k[layer].tensor, self._v[layer].tensor),
            torch.from_numpy(self._start_R),
            self.column,
            self._segments_S3,
            self._shared[layer],
        )

    def _num_placed(self, layout: CacheLayout) -> int:
        return sum(padded(len(segment.slots)) for segment in layout.segments)

    def _shared_parts(self, gathered: GatheredCache, k: Tensor, v: Tensor) -> SharedParts:
        kernels, memory = self._kernels, self._pool.batch_memory

        def placed(part: Tensor) -> Tensor:
            return memory.take(part.numel()).view(part.shape).copy_(part)

        return (
            [placed(kernels.shared_keys(keys)) for keys in gathered.shared(k)],
            [placed(kernels.shared_values(values)) for values in gathered.shared(v)],
        )

    def _keep_segments(self, index: Ids) -> None:
        super()._keep_segments(index)
        self._segments_S3 = self._segment_table()

    def _segment_table(self) -> Tensor:
        return torch.tensor([[s.first, s.last, len(s.slots)] for s in self._segments])
