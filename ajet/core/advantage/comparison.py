"""Comparison of numbers within sets: episodes of one task, or steps from one state.

    values_N    1   0   0   1   .3   .3   2
    sets_N      0   0   0   0    1    1   2
    counts_N    4   4   4   4    2    2   1
    means_N    .5  .5  .5  .5   .3   .3   2
    stds_N    .58 .58 .58 .58  0    0   0       divided by counts_N - 1

Means, deviations and counts are repeated for each value, so that formulas read as in the papers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ajet.core.advantage.credit import Advantages, EpisodeCredit, GroupCredit


@dataclass(frozen=True, slots=True)
class Comparison:
    """Values, and for each the number of the set in which it is compared."""

    values_N: NDArray[np.float64]
    sets_N: NDArray[np.int64]

    def sum_of(self, weights_N: NDArray[np.generic]) -> NDArray[np.float64]:
        """Returns, for each value, the sum of `weights_N` over its set."""
        return np.bincount(self.sets_N, weights_N).astype(np.float64)[self.sets_N]

    @property
    def counts_N(self) -> NDArray[np.int64]:
        return np.bincount(self.sets_N)[self.sets_N].astype(np.int64)

    @property
    def sums_N(self) -> NDArray[np.float64]:
        return self.sum_of(self.values_N)

    @property
    def means_N(self) -> NDArray[np.float64]:
        return self.sums_N / self.counts_N

    @property
    def are_equal_N(self) -> NDArray[np.bool_]:
        """Tells for each value whether all values of its set are the same number."""
        # Compared with one value of each set: a deviation that rounds to 1e-17 is not 0.
        samples_S = np.zeros(len(np.bincount(self.sets_N)))
        samples_S[self.sets_N] = self.values_N
        differs_N = self.values_N != samples_S[self.sets_N]
        return self.sum_of(differs_N) == 0

    @property
    def stds_N(self) -> NDArray[np.float64]:
        """Returns the unbiased standard deviation of each value's set."""
        squares_N = (self.values_N - self.means_N) ** 2
        return np.sqrt(self.sum_of(squares_N) / np.maximum(self.counts_N - 1, 1))


def compare_scores(groups: Sequence[GroupCredit]) -> Comparison:
    """Returns the scores of all episodes, compared within their groups."""
    scores_N = np.array([episode.score for group in groups for episode in group], np.float64)
    sizes = np.array([len(group) for group in groups], np.int64)
    return Comparison(scores_N, np.repeat(np.arange(len(groups)), sizes))


def episodes_of(groups: Sequence[GroupCredit]) -> list[EpisodeCredit]:
    """Returns the episodes of all groups, in the order of the scores of `compare_scores`."""
    return [episode for group in groups for episode in group]


def spread_evenly(
    groups: Sequence[GroupCredit], advantages_N: Sequence[float] | NDArray[np.float64]
) -> Advantages:
    """Gives each episode's advantage to all of its trained tokens."""
    pairs = zip(episodes_of(groups), advantages_N, strict=True)
    return {e.episode_id: e.spread(np.full(len(e.lengths_T), value)) for e, value in pairs}
