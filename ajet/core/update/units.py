"""Numbers the units that a correction weighs or measures: tokens, turns or episodes.

    samples           episode a: turns of 2 and 1 tokens     a's second timeline: 1 token
    level token       0 1 | 2                                3
    turn              0 0 | 1                                2
    sequence          0 0 | 0                                0

Arrays over a sample's tokens [T] have -1 at tokens that the policy did not sample.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ajet.core.trajectory.sample import TrainingSample

Units = list[NDArray[np.int64]]


def units_of(samples: Sequence[TrainingSample], level: str) -> Units:
    """Returns for each sample the number of every sampled token's unit, and -1 elsewhere."""
    numbers: dict[object, int] = {}
    units: Units = []
    for sample_index, sample in enumerate(samples):
        keys = _unit_keys(sample, sample_index, level)
        unit_T = np.full(len(sample), -1, np.int64)
        for position in np.flatnonzero(sample.sampled_mask):
            unit_T[position] = numbers.setdefault(keys[position], len(numbers))
        units.append(unit_T)
    return units


def tokens_of_units(units: Units) -> NDArray[np.int64]:
    """Returns the number of tokens of each unit."""
    # The empty array is for no samples: concatenate refuses an empty list.
    return np.bincount(np.concatenate([*(u[u >= 0] for u in units), np.zeros(0, np.int64)]))


def log_ratios(sample: TrainingSample) -> NDArray[np.float64]:
    """Returns log(old / sampler) of each sampled token of a sample that has `old_logprobs`."""
    assert sample.old_logprobs is not None
    log_ratio_T = sample.old_logprobs.astype(np.float64) - sample.logprobs
    return log_ratio_T[sample.sampled_mask]


def _unit_keys(sample: TrainingSample, sample_index: int, level: str) -> list[object]:
    """Returns for each token a key that identifies its unit."""
    if level == "sequence":  # an episode is one unit, over all its timelines
        return [sample.episode_id] * len(sample)
    keys: list[object] = [(sample_index, position) for position in range(len(sample))]
    if level == "turn":
        for span in sample.spans:  # a turn is trained in one timeline only
            keys[span.start : span.stop] = [(sample_index, span)] * (span.stop - span.start)
    return keys
