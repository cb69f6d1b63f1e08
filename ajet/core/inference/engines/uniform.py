"""Uniform random numbers as a hash of (seed, count), without the state of a generator."""

import numpy as np
from numpy.typing import NDArray


def uniforms(seeds: NDArray[np.uint64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns a number in [0, 1) for each (seed, count), by SplitMix64."""
    mixed = _mix(seeds + _mix(counts.astype(np.uint64)))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
