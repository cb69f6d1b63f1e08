"""The slow forward pass, through transformers, for any causal model that runs with left padding
(docs/models.md lists the tested ones). The cache is the model's. Without a prefix cache, each
forming of a batch computes rows from their first token, equal rows once.
"""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import DynamicCache

from ajet.core.errors import UnsupportedModel
from ajet.core.model.routers import Routers
from ajet.core.model.vision import vision_of
from ajet.engines.forward import BatchRow
from ajet.engines.packed_decoder import PackedWeights

CACHE_NAMES = ("cache", "past_key_values", "cache_params")
"""The names of the cache in releases of transformers, as an argument and in the output."""


class HfForward:
    """A `Forward` through `model(...)` with the model's cache."""

    num_replayed = 0

    def __init__(
        self,
        model: nn.Module,
        max_kv_tokens: int | None,
        max_kv_bytes: int,
        packs: bool = True,
        routers: Routers | None = None,
    ) -> None:
        """`max_kv_bytes` is the budget if `max_kv_tokens` is None. `packs` allows copies of the
        weights (`PackedWeights`). `routers` record the experts of each row."""
        self._model: Any = model
        vision = vision_of(model)
        if vision is not None and vision.has_axes:
            raise UnsupportedModel(
                f"in-process engine: models of type {self._model.config.model_type!r} see images "
                "only where every layer is plain attention; lower ajet.rollout.max_model_len to "
                "the model's window"
            )
        self._routers = routers
        self._max_kv_tokens = max_kv_tokens
        self._max_kv_bytes = max_kv_bytes
        inner = self._model.get_base_model() if hasattr(model, "get_base_model") else model
        self._accepted = inspect.signature(inner.forward).parameters
        names = [name for name in CACHE_NAMES if name in self._accepted]
        if not names:
            raise UnsupportedModel(
                f"in-process engine: models of type {self._model.config.model_type!r} have no "
                "cache in transformers, which sampling needs; use a model of docs/models.md in "
                "ajet.model.path"
            )
        self._cache_name = names[0]
        self._device = next(model.parameters()).device
        self._packed = PackedWeights(model) if packs and PackedWeights.supports(model) else None
        self._can_select_rows = True  # unless the cache turns out to be of another class
        self.reset()

    def reset(self) -> None:
        self._drop_batch()
        self.free_weights()

    def renew(self, version: int, oldest: int | None) -> None:
        self.reset()

    def _drop_batch(self) -> None:
        self._rows: Sequence[BatchRow] = ()
        self._cache: Any = None
        self._padded = self._mask = torch.zeros(0, 0)

    # Without a prefix cache there is nothing to release or store.
    def release(self, episode_ids: Iterable[str]) -> None: ...
    def store(self, rows: Sequence[tuple[int, BatchRow]]) -> None: ...

    def fits(self, rows: Sequence[BatchRow]) -> bool:
        if len(rows) == 1:
            return True
        longest = max(row.max_len for row in rows)
        if self._max_kv_tokens is not None:
            return len(rows) * longest <= self._max_kv_tokens
        row_bytes, token_bytes = self._cache_bytes
        return len(rows) * (row_bytes + longest * token_bytes) <= self._max_kv_bytes

    def rebuild(self, rows: Sequence[BatchRow]) -> int:
        """Drops the old batch; the next `decode` computes the rows from their first token. Returns
        the number of tokens that it will compute, without the last of each row."""
        self._drop_batch()
        if self._packed is not None:
            self._packed.pack()
        self._rows = rows
        width = max(len(row.ids) for row in rows)
        tokens, mask = torch.zeros(2, len(rows), width, dtype=torch.long)
        for number, row in enumerate(rows):
            tokens[number, width - len(row.ids) :] = torch.tensor(row.ids)
            mask[number, width - len(row.ids) :] = 1
        self._padded, self._mask = tokens.to(self._device), mask.to(self._device)
        return sum(len(ids) - 1 for ids in {tuple(row.ids) for row in rows})

    def free_weights(self) -> None:
        if self._packed is not None:
            self._packed.free()

    def decode(self, tokens_R: Tensor, positions_R: NDArray[np.int64]) -> Tensor:
        if self._cache is None:
            return self._begin()
        tokens = tokens_R.long().to(self._device).unsqueeze(1)
        self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        logits, self._cache = self._compute(tokens, self._mask, self._cache)
        if self._routers is not None:
            for row, routes in zip(self._rows, self._last_routes, strict=True):
                row.add_routes(routes, row.num_routed)
        return logits

    def _begin(self) -> Tensor:
        """Computes the rows from their first token, and returns the logits after their last. Rows
        are sorted, so equal ones are neighbours."""
        ids = [row.ids for row in self._rows]
        is_new = [n == 0 or ids[n] != ids[n - 1] for n in range(len(ids))]
        first = torch.tensor([n for n, new in enumerate(is_new) if new], device=self._device)
        if len(first) < len(ids) and self._can_select_rows:
            logits, cache = self._compute(self._padded[first], self._mask[first], None)
            # In a cache of the model's own class, `reorder_cache` may miss a part of the state.
            self._can_select_rows = type(cache) is DynamicCache
            if self._can_select_rows:
                # The number of each row's computed one: [True, False, True] -> [0, 0, 1].
                sources = list(accumulate(is_new, initial=-1))[1:]
                self._begin_routes(sources)
                source_R = torch.tensor(sources, device=self._device)
                cache.reorder_cache(source_R)
                self._cache = cache
                return logits[source_R]
        logits, self._cache = self._compute(self._padded, self._mask, None)
        self._begin_routes(range(len(ids)))
        self._can_select_rows = type(self._cache) is DynamicCache
        return logits

    def _begin_routes(self, sources: Iterable[int]) -> None:
        """Gives each row the experts of all its tokens; `sources` has the number of its computed
        row."""
        if self._routers is not None:
            for row, source in zip(self._rows, sources, strict=True):
                # Without the padding on the left.
                row.add_routes(self._last_routes[source, -len(row.ids) :], 0)

    def keep(self, index: NDArray[np.int64]) -> None:
        if not len(index):
            self._drop_batch()
        elif self._cache is None or not self._can_select_rows:  # compute them again
            self.rebuild([self._rows[number] for number in index])
        else:
            index_R = torch.from_numpy(index).to(self._device)
            # Not `batch_select_indices`, which omits the states of linear attention.
            self._cache.reorder_cache(index_R)
            self._mask = self._mask[index_R]
            self._rows = [self._rows[number] for number in index]

    def _compute(self, tokens: Tensor, mask: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Returns the logits after the last column, and the cache (None: the model creates it)."""
        # Counted from a row's first token, after the padding on its left.
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        optional = {"position_ids": positions, "logits_to_keep": 1}
        if self._routers is not None:
            self._routers.begin()
        out = self._model(
            input_ids=tokens,
            attention_mask=mask,
            use_cache=True,
            **{self._cache_name: cache},
            **{name: value for name, value in optional.items() if name in self._accepted},
        )
        if self._routers is not None:
            routes_NLk = self._routers.compact(self._routers.end())
            self._last_routes = routes_NLk.reshape(*tokens.shape, *routes_NLk.shape[1:])
        return out.logits[:, -1], getattr(out, self._cache_name)

    @cached_property
    def _cache_bytes(self) -> tuple[int, int]:
        """The bytes of a row's cache: a fixed part and a part per token. Measured with rows of one
        and two tokens, since model families differ in what they store."""
        sizes = []
        for length in (1, 2):
            tokens = torch.zeros(1, length, dtype=torch.long, device=self._device)
            _, cache = self._compute(tokens, torch.ones_like(tokens), None)
            sizes.append(_num_bytes([vars(cache), *map(vars, getattr(cache, "layers", ()))]))
        token_bytes = sizes[1] - sizes[0]
        return sizes[0] - token_bytes, token_bytes


def _num_bytes(value: Any) -> int:
    """Returns the size of the tensors in nested lists and mappings."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, Mapping):
        value = list(value.values())
    return sum(map(_num_bytes, value)) if isinstance(value, list) else 0
