"""The micro-batch as a token trie: each distinct prefix is computed once (promise 4).

    s s s q q a a a        the group's prompt, and the system prompt of all groups, go through the
            ├ b b          linear layers once; positions are depths; a token sees its ancestors only
            └ c c c

Gradients of all descendants add up in a shared token by themselves. Logits are computed only for
tokens whose successor is trained, once even where siblings read the same one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ajet.core.model.decoder import Decoder
from ajet.core.update.layouts.layout import Readout, Row, device_of
from ajet.core.update.layouts.tree_attention import AttentionPlan, tree_attention
from ajet.core.update.layouts.trie import Forest, common_prefix, lexicographic, trie_of_rows


class TreeLayout:
    name = "tree"

    def __init__(self, model: nn.Module) -> None:
        self.decoder = Decoder(model)
        self.model = model

    def split(self, rows: Sequence[Row], budget: int) -> list[list[Row]]:
        batches: list[list[Row]] = []
        used = 0
        previous: Row | None = None
        for i in lexicographic([row.input_ids for row in rows]):
            row = rows[i]
            shared = common_prefix(previous.input_ids, row.input_ids) if previous else 0
            if not batches or used + len(row) - shared > budget:
                batches.append([])
                used, shared = 0, 0
            batches[-1].append(row)
            used += len(row) - shared
            previous = row
        return batches

    def read_out(self, rows: Sequence[Row]) -> Readout:
        forest = trie_of_rows([row.input_ids for row in rows])
        return read_forest(self.decoder, self.model, rows, forest)

    def read_hidden(self, rows: Sequence[Row]) -> Tensor:
        read = self.read_out(rows)  # its features are the hidden states
        return read.features_UD[read.index_M]


def read_forest(decoder: Decoder, model: Any, rows: Sequence[Row], forest: Forest) -> Readout:
    """Forward pass over a forest, and the hidden states that its rows read."""
    device = device_of(model)
    plan = AttentionPlan.of(forest, device)

    def attend(layer: int, q_NHd: Tensor, k_NKd: Tensor, v_NKd: Tensor) -> Tensor:
        return tree_attention(q_NHd, k_NKd, v_NKd, plan)

    hidden_ND = decoder(
        torch.from_numpy(forest.token_ids_N).to(device),
        torch.from_numpy(forest.positions_N).to(device),
        attend,
    )
    read = [nodes[row.read] for nodes, row in zip(forest.row_nodes, rows, strict=True)]
    nodes_U, index_M = np.unique(np.concatenate(read), return_inverse=True)
    return Readout(
        features_UD=hidden_ND.index_select(0, torch.from_numpy(nodes_U).to(device)),
        head=decoder.logits,
        vocab_size=model.config.vocab_size,
        index_M=torch.from_numpy(index_M).to(device),
        num_computed=len(forest),
    )
