"""Rows one after another as a flat list of tokens, each attending within its own row only.

s q a a | s q b b b b      no padding in the linear layers, nothing shared
"""

from collections.abc import Sequence

from torch import Tensor, nn

from ajet.core.model.decoder import Decoder
from ajet.core.update.layouts.layout import Readout, Row
from ajet.core.update.layouts.tree import read_forest
from ajet.core.update.layouts.trie import forest_of_rows


class PackedLayout:
    name = "packed"

    def __init__(self, model: nn.Module) -> None:
        self.decoder = Decoder(model)
        self.model = model

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

    def read_out(self, rows: Sequence[Row]) -> Readout:
        forest = forest_of_rows([row.input_ids for row in rows])
        return read_forest(self.decoder, self.model, rows, forest)

    def read_hidden(self, rows: Sequence[Row]) -> Tensor:
        read = self.read_out(rows)  # its features are the hidden states
        return read.features_UD[read.index_M]
