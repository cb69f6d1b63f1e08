"""A `GridBatch` whose decode step can be captured and replayed (step_graph.py).

A step's launches are the same, on the same memory, until `advance` adds columns or `keep` drops
rows: the column that is written is read from a tensor, and the mask changes in place. Columns are
added in larger steps than elsewhere, because after each the step is captured anew.

Every layout of rows is computed so: where a grid of segments would be mostly padding, all rows are
one segment.
"""

from torch import Tensor

from ajet.core.inference.engines.grid_batch import GridBatch
from ajet.core.inference.engines.kv_cache import CacheLayout
from ajet.core.inference.engines.prefix_cache import Ids


class GraphBatch(GridBatch):
    """Computes what a `GridBatch` does, with launches that do not depend on the column."""

    @staticmethod
    def layout_of(slots_R: list[Ids]) -> CacheLayout:
        """Lays out rows, given by their slots, in the fewest slots that make a grid which fits."""
        for smallest in (True, False):
            layout = CacheLayout.of(slots_R, smallest=smallest)
            if GridBatch.fits(layout):
                return layout
        return CacheLayout.of_one_segment(slots_R)

    def _columns_at_a_time(self, most: int) -> int:
        return 128

    def _write(self, cached: Tensor, new: Tensor) -> None:
        cached.index_copy_(2, self.column_1, new.transpose(0, 1).unsqueeze(2))
