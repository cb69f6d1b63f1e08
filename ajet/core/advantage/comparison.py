"""Comparison of numbers within sets: episodes of one task, or steps from one state.

    values_N    1   0   0   1   .3   .3   2
    sets_N      0   0   0   0    1    1   2
    counts_N    4   4   4   4    2    2   1
    means_N    .5  .5  .5  .5   .3   .3   2
    centred    .5 -.5 -.5  .5    0    0   0

Equal values, and a single one, give exactly 0. Equality is tested instead of subtracting the mean,
because the mean's rounding error, divided by a deviation of 1e-6, would leave a spurious signal.

Not covered: means that leave the value itself out (rloo, step_reinforce).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ajet.core.advantage.credit import Advantages, EpisodeCredit, GroupCredit, StdScale

EPSILON = 1e-6
"""Added to a standard deviation before dividing by it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Holds values, and for each the number of the set that it is compared in."""

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
        one_of_each = np.zeros(len(np.bincount(self.sets_N)))
        one_of_each[self.sets_N] = self.values_N
        differs_N = self.values_N != one_of_each[self.sets_N]
        return self.sum_of(differs_N) == 0

    @property
    def scales_N(self) -> NDArray[np.float64]:
        """Returns one over the unbiased standard deviation of each value's set; 1 where all are
        equal.
        """
        centred_N = self.centred()
        stds_N = np.sqrt(self.sum_of(centred_N**2) / np.maximum(self.counts_N - 1, 1))
        return np.where(self.are_equal_N, 1.0, 1 / (stds_N + EPSILON))

    def centred(self, *, normalize_std: StdScale = False) -> NDArray[np.float64]:
        """Subtracts the mean of its set from each value; `normalize_std` also divides by the
        deviation of the set, or of all values.
        """
        centred_N = np.where(self.are_equal_N, 0.0, self.values_N - self.means_N)
        return self.scaled(centred_N, normalize_std)

    def scaled(
        self, differences_N: NDArray[np.float64], normalize_std: StdScale
    ) -> NDArray[np.float64]:
        """Divides differences between the values by the deviation that `normalize_std` names;
        where all are 0 they stay 0."""
        if normalize_std == "batch":
            is_zero = not differences_N.any()  # as of a single value, which has no deviation
            return (
                differences_N if is_zero else differences_N / (self.values_N.std(ddof=1) + EPSILON)
            )
        return differences_N * self.scales_N if normalize_std else differences_N


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
