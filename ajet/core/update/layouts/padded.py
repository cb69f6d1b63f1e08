"""A rectangle ``[rows, longest]`` through transformers' own forward: any causal model, and the
reference that the other layouts are tested against.

    s q a a . .
    s q b b b b      right padded; the pad tokens are computed and thrown away
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ajet.core.update.layouts.layout import Readout, Row, device_of


class PaddedLayout:
    name = "padded"

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def split(self, rows: Sequence[Row], budget: int) -> list[list[Row]]:
        batches: list[list[Row]] = []
        for row in sorted(
            rows, key=len
        ):  # equal lengths together; sorted() keeps the order of ties
            if not batches or len(row) * (len(batches[-1]) + 1) > budget:
                batches.append([])
            batches[-1].append(row)
        return batches

    def read_out(self, rows: Sequence[Row]) -> Readout:
        inputs, longest = self._inputs(rows), max(map(len, rows))
        # Logits are the widest tensor: only the columns from the first read one on are computed.
        num_kept = longest - min(int(row.read[0]) for row in rows)
        device = device_of(self.model)
        logits_BKV = self.model(**inputs, logits_to_keep=num_kept).logits
        first = longest - num_kept
        index = [i * num_kept + row.read - first for i, row in enumerate(rows)]
        index_M = torch.from_numpy(np.concatenate(index)).to(device)
        return Readout(
            features_UD=logits_BKV.flatten(0, 1)[index_M],
            head=torch.nn.Identity(),
            vocab_size=logits_BKV.shape[-1],
            index_M=torch.arange(len(index_M), device=device),
            num_computed=inputs["input_ids"].numel(),
        )

    def read_hidden(self, rows: Sequence[Row]) -> Tensor:
        model: Any = self.model
        hidden_BTD = model.base_model(**self._inputs(rows)).last_hidden_state
        index = [i * hidden_BTD.shape[1] + row.read for i, row in enumerate(rows)]
        index_M = torch.from_numpy(np.concatenate(index)).to(hidden_BTD.device)
        return hidden_BTD.flatten(0, 1)[index_M]

    def _inputs(self, rows: Sequence[Row]) -> dict[str, Any]:
        longest = max(map(len, rows))
        ids_BT = np.zeros((len(rows), longest), np.int64)
        mask_BT = np.zeros((len(rows), longest), np.int64)
        for i, row in enumerate(rows):
            ids_BT[i, : len(row)], mask_BT[i, : len(row)] = row.input_ids, 1
        device = device_of(self.model)
        return {
            "input_ids": torch.from_numpy(ids_BT).to(device),
            "attention_mask": torch.from_numpy(mask_BT).to(device),
            "use_cache": False,
        }
