"""The padded layout: a rectangle ``[rows, longest]``, padded on the right, through transformers'
own forward. It works with any causal model, and the other layouts are tested against it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.model.decoder import recompute_layers
from ajet.core.model.routers import RouterLoad, Routers
from ajet.core.model.vision import vision_of
from ajet.core.ranks.sequence import SequenceGroup
from ajet.core.update.layouts.layout import ForwardOutput, Row, begin_routes, token_routes
from ajet.core.update.settings import Recomputation


class PaddedLayout:
    name = "padded"

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        sequence: SequenceGroup | None,
        recompute: Recomputation = False,
    ) -> None:
        if sequence is not None:
            raise ConfigError(
                f"ulysses_sequence_parallel_size={sequence.size}: rows in batch_layout padded are "
                "not divided; use tree or packed, with a model that has a flat forward, or 1",
                code=Code.PARALLEL_SIZE,
            )
        self.model = model
        self.device = device
        self._vision = vision_of(model)
        self.routers: Routers | None = None
        self.load: RouterLoad | None = None
        if recompute:
            recompute_layers(model)

    def split(self, rows: Sequence[Row], budget: int) -> list[list[Row]]:
        batches: list[list[Row]] = []
        # Similar lengths come together, which saves padding. sorted() keeps the order of ties, so
        # the same rows give the same micro-batches.
        for row in sorted(rows, key=len):
            if not batches or len(row) * (len(batches[-1]) + 1) > budget:
                batches.append([])
            batches[-1].append(row)
        return batches

    def num_computed(self, rows: Sequence[Row]) -> int:
        return len(rows) * max(map(len, rows))

    def local_rows(self, rows: Sequence[Row]) -> list[Row]:
        return list(rows)

    def forward(self, rows: Sequence[Row]) -> ForwardOutput:
        inputs, longest = self._inputs(rows), max(map(len, rows))
        # Logits are the largest tensor: only columns from the first position in use are computed.
        num_kept = longest - min(
            (int(row.positions[0]) for row in rows if len(row.positions)), default=0
        )
        self._begin_routes(rows)
        logits_BKV = self.model(**inputs, logits_to_keep=num_kept).logits
        self._end_routes()
        # `index` are cells of the flattened [B, K]: column 0 is position `first`.
        first = longest - num_kept
        index = [i * num_kept + row.positions - first for i, row in enumerate(rows)]
        index_M = torch.from_numpy(np.concatenate(index)).to(self.device)
        return ForwardOutput(
            features_UD=logits_BKV.flatten(0, 1)[index_M],
            head=torch.nn.Identity(),
            vocab_size=logits_BKV.shape[-1],
            index_M=torch.arange(len(index_M), device=self.device),
        )

    def forward_hidden(self, rows: Sequence[Row]) -> Tensor:
        model: Any = self.model
        self._begin_routes(rows)
        hidden_BTD = model.base_model(**self._inputs(rows)).last_hidden_state
        self._end_routes()
        index = [i * hidden_BTD.shape[1] + row.positions for i, row in enumerate(rows)]
        index_M = torch.from_numpy(np.concatenate(index)).to(hidden_BTD.device)
        return hidden_BTD.flatten(0, 1)[index_M]

    def _begin_routes(self, rows: Sequence[Row]) -> None:
        if self.routers is not None:
            longest = max(map(len, rows))
            nodes = [i * longest + np.arange(len(row)) for i, row in enumerate(rows)]
            routes = token_routes(self.routers, rows, nodes, len(rows) * longest)
            begin_routes(self.routers, routes, self.device, self.load)

    def _end_routes(self) -> None:
        if self.routers is not None:
            self.routers.end()

    def _inputs(self, rows: Sequence[Row]) -> dict[str, Any]:
        # No mask: rows are padded on the right, where no real token looks. With a mask a pad token
        # might see nothing and become NaN, which layers with a state would spread.
        ids_BT = np.zeros((len(rows), max(map(len, rows))), np.int64)
        for i, row in enumerate(rows):
            ids_BT[i, : len(row)] = row.input_ids
        inputs = {"input_ids": torch.from_numpy(ids_BT).to(self.device), "use_cache": False}
        if self._vision is not None and self._vision.has_axes:
            positions = np.stack([self._vision.positions(ids_T) for ids_T in ids_BT], axis=1)
            inputs["position_ids"] = torch.from_numpy(positions).to(self.device)
        return inputs
