"""The slow forward pass, for any other causal model: transformers' own, with its own cache.

A batch is left-padded, as in `generate`. Forming it computes every row from its first token; there
is no prefix cache. It is correct for every model that transformers can run with left padding.
"""

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import DynamicCache

from ajet.core.inference.engines.forward import BatchRow


class HfForward:
    """Computes forward passes through `model(...)` with a `DynamicCache`."""

    num_replayed = 0

    def __init__(self, model: nn.Module, max_kv_tokens: int) -> None:
        self._model: Any = model
        self._max_kv_tokens = max_kv_tokens
        inner = self._model.get_base_model() if hasattr(model, "get_base_model") else model
        self._accepted = inspect.signature(inner.forward).parameters
        self._device = next(model.parameters()).device
        self.reset()

    def reset(self) -> None:
        """Drops the batch's cache and mask."""
        self._cache: Any = None
        self._padded = self._mask = torch.zeros(0, 0)

    def release(self, episode_ids: Iterable[str]) -> None:
        """Does nothing: no cache is kept for an episode."""

    def store(self, rows: Sequence[tuple[int, BatchRow]]) -> None:
        """Does nothing: no cache is kept for a later turn."""

    def fits(self, rows: Sequence[BatchRow]) -> bool:
        """Tells whether the padded batch of these rows stays within the budget."""
        return len(rows) * max(row.max_len for row in rows) <= self._max_kv_tokens

    def rebuild(self, rows: Sequence[BatchRow]) -> int:
        """Drops the old batch. The next `decode` computes the rows from their first token. Returns
        the number of tokens that it will compute beside the last of each row."""
        self.reset()
        self._padded, self._mask = self._left_padded(rows)
        return sum(len(row.ids) - 1 for row in rows)

    def free_weights(self) -> None:
        """Does nothing: the model's own forward needs no copies."""

    def decode(self, tokens_R: Tensor, positions_R: NDArray[np.int64]) -> Tensor:
        """Returns logits ``[rows, vocab]`` after each row's last token."""
        if self._cache is None:
            self._cache = DynamicCache(config=self._model.config)
            tokens = self._padded
        else:
            tokens = tokens_R.long().to(self._device).unsqueeze(1)
            self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        positions = (self._mask.cumsum(-1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        optional = {"position_ids": positions, "logits_to_keep": 1}
        out = self._model(
            input_ids=tokens,
            attention_mask=self._mask,
            past_key_values=self._cache,
            use_cache=True,
            **{name: value for name, value in optional.items() if name in self._accepted},
        )
        return out.logits[:, -1]

    def keep(self, index: NDArray[np.int64]) -> None:
        """Drops all rows but these."""
        if not len(index):
            self.reset()
        elif self._cache is not None:
            index_R = torch.from_numpy(index).to(self._device)
            self._cache.batch_select_indices(index_R)
            self._mask = self._mask[index_R]

    def _left_padded(self, rows: Sequence[BatchRow]) -> tuple[Tensor, Tensor]:
        width = max(len(row.ids) for row in rows)
        tokens = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros(len(rows), width, dtype=torch.long)
        for number, row in enumerate(rows):
            tokens[number, width - len(row.ids) :] = torch.tensor(row.ids)
            mask[number, width - len(row.ids) :] = 1
        return tokens.to(self._device), mask.to(self._device)
