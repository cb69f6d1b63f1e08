"""The packed layout: rows one after another in a flat list; a token attends to its own row only.

s q a a | s q b b b b      no padding in the linear layers, nothing shared
"""

from collections.abc import Sequence

from ajet.core.model.attention.trie import Forest, forest_of_rows
from ajet.core.update.layouts.layout import Row
from ajet.core.update.layouts.tree import FlatLayout


class PackedLayout(FlatLayout):
    name = "packed"

    def forest(self, rows: Sequence[Row]) -> Forest:
        return forest_of_rows([row.input_ids for row in rows])

    def split(self, rows: Sequence[Row], budget: int) -> list[list[Row]]:
        batches: list[list[Row]] = []
        used = 0
        for row in rows:
            if not batches or used + len(row) > budget:
                batches.append([])
                used = 0
            batches[-1].append(row)
            used += len(row)
        return batches

    def num_computed(self, rows: Sequence[Row]) -> int:
        return sum(map(len, rows))
