"""Whitening: advantages with mean 0 and deviation 1 over all trained tokens of a batch.

    x -> (x - mean) / sqrt(var + 1e-8)        var unbiased: divided by n - 1, as verl does

Every token has the same weight, so long episodes weigh more. If all advantages are equal, or there
is only one, they become exactly 0 (verl refuses a single token).

Not covered: whitening within a group, which estimators do themselves.
"""

import numpy as np

from ajet.core.advantage.credit import Advantages

EPSILON = 1e-8


def whiten(advantages: Advantages) -> Advantages:
    """Whitens the advantages over the batch; only trained tokens have one, so no mask is needed."""
    arrays = [array for turns in advantages.values() for array in turns]
    flat = np.concatenate(arrays).astype(np.float64) if arrays else np.zeros(0)
    if not len(flat) or (flat == flat[0]).all():
        return {name: tuple(map(np.zeros_like, turns)) for name, turns in advantages.items()}
    mean, scale = flat.mean(), 1 / np.sqrt(flat.var(ddof=1) + EPSILON)
    return {
        name: tuple(((array - mean) * scale).astype(np.float32) for array in turns)
        for name, turns in advantages.items()
    }
