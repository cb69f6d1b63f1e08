"""The length of the common prefix of two sequences: common_length([a, b, c], [a, b, d, e]) == 2."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def common_length(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Returns the length of the common prefix of two lists or two tuples."""
    if a == b[: len(a)]:  # the usual case, and much faster than the comparison below
        return len(a)
    pairs = enumerate(zip(a, b, strict=False))
    return next((index for index, (x, y) in pairs if x != y), min(len(a), len(b)))


def common_length_of_ids(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """Returns the length of the common prefix of two arrays."""
    length = min(len(a), len(b))
    differs = np.flatnonzero(a[:length] != b[:length])
    return int(differs[0]) if len(differs) else length
