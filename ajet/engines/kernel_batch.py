"""Attention of a decode step in compiled kernels: `TiledBatch` on CPUs, `CudaBatch` on GPUs.
Segments of different sizes cost neither padding (as in grid_batch.py) nor calls (as in
kv_cache.py). Own parts are ``[kv_heads, rows, columns, d]``, as in `KVBatch`.
"""

import numpy as np
import torch
from torch import Tensor

from ajet.core.model.kernels.devices import decode_kernels, decode_kernels_for
from ajet.core.model.kernels.functions import attention_kernels_for
from ajet.core.model.kernels.segments import padded
from ajet.engines.kv_cache import CacheLayout, GatheredCache, KVBatch, KVPool, SharedParts, in_steps
from ajet.engines.prefix_cache import Ids

DIMS, MAX_GROUP = (32, 64, 128), 16
COLUMNS = 16
"""The number of columns is a multiple of this."""


class TiledBatch(KVBatch):
    """A `KVBatch` with the compiled attention kernels for CPUs.

    Each segment has its keys ``[kv_heads, S, d]``, and its values in tiles
    (`Kernels.shared_values`). Shared parts are multiplied in tiles of queries, own parts row by
    row, with one softmax over both.
    """

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


class CudaBatch(KVBatch):
    """A `KVBatch` with the attention kernels for CUDA GPUs: one launch, two where rows are few.

    The shared slots of all segments are one list, ``[kv_heads, slots, d]``; `_table_R3` has each
    row's first own column, first shared slot, and their number. A step can be captured and replayed
    (step_graph.py) until `keep` drops rows: the column is read from a tensor, and all columns exist
    from the start.
    """

    @staticmethod
    def supports(pool: KVPool, group: int) -> bool:
        """Returns whether the kernels can serve the pool, with `group` query heads per key head."""
        is_served = pool.k.shape[3] in DIMS and group <= MAX_GROUP
        return is_served and decode_kernels_for(pool.k) is not None

    def __init__(self, pool: KVPool, layout: CacheLayout, max_new_tokens: int) -> None:
        self._kernels = decode_kernels()
        # The first shared slot of each row, in the list of all segments' slots.
        sizes = [segment.last - segment.first for segment in layout.segments]
        lengths = [len(segment.slots) for segment in layout.segments]
        self._first_slot_R = np.repeat(np.cumsum([0, *lengths[:-1]]), sizes)
        super().__init__(pool, layout, max_new_tokens)
        self._set_table()

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        [shared_k], [shared_v] = self._shared[layer]
        return self._kernels.attend(
            (q, k, v),
            (self._k[layer].tensor, self._v[layer].tensor),
            (shared_k, shared_v),
            self._table_R3,
            self.column_1,
            self._num_parts,
        )

    def _columns_at_a_time(self, most: int) -> int:
        return in_steps(most, COLUMNS)  # all at once, so that the memory never moves

    def _shared_parts(self, gathered: GatheredCache, k: Tensor, v: Tensor) -> SharedParts:
        return [gathered.joined(k)], [gathered.joined(v)]

    def _keep_segments(self, index: Ids) -> None:
        self._remaining_segments(index)
        self._first_slot_R = self._first_slot_R[index]
        self._set_table()

    def _padding_mask(self) -> Tensor:
        return self._pool.k.new_empty(0)  # the kernel uses the table

    def _set_table(self) -> None:
        table = np.stack((self._start_R, self._first_slot_R, self._shared_R), axis=1)
        self._table_R3 = self._pool.tensor(table.astype(np.int32))
        # With few rows, the kernel cuts the keys into parts to occupy the whole GPU.
        most_keys = int((self._shared_R + self.num_columns - self._start_R).max())
        kv_heads = self._pool.k.shape[1]
        self._num_parts = self._kernels.num_parts(self.num_rows, kv_heads, most_keys)
