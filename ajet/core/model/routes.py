"""The experts of an engine's tokens, as arrays ``[tokens, layers, k]`` (routers.py)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Routes = NDArray[np.unsignedinteger[Any]]
"""Experts ``[tokens, layers, k]``, uint8 or uint16; the dtype's largest number stands for unknown
ones."""


NUM_EXPERTS_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")
"""What model configs call the number of experts of a layer."""


def route_dtype(num_experts: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Returns the smallest dtype that has the experts' numbers and one for unknown ones."""
    is_small = num_experts < np.iinfo(np.uint8).max
    return np.dtype(np.uint8 if is_small else np.uint16)


def unknown(dtype: np.dtype[np.unsignedinteger[Any]]) -> int:
    return int(np.iinfo(dtype).max)


def merge_routes(pieces: Sequence[Routes | None], length: int | None = None) -> Routes | None:
    """Merges what several passes recorded of one sequence, each from its first token on; None if
    none did. A token has the experts with which it was first computed: those that what was sampled
    after it depends on. Tokens up to `length` that none computed have unknown ones."""
    known = [routes for routes in pieces if routes is not None]
    if not known:
        return None
    length = max(map(len, known)) if length is None else length
    merged = np.full_like(known[0], unknown(known[0].dtype), shape=(length, *known[0].shape[1:]))
    for routes in reversed(known):
        merged[: len(routes)] = routes
    return merged
