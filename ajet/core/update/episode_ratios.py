"""log(pi / old) of whole episodes, gathered over the micro-batches of a mini-batch.

    rows     e0: .1 .2    e1: -.3    e0: .3          e0 has two timelines
    sum      e0: .6       e1: -.3                    mean   e0: .2    e1: -.3

Sums are in float64, so that their order, which depends on the micro-batches, does not change the
result in float32.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ajet.core.update.layouts.layout import Row
from ajet.core.update.ranks import Ranks


class EpisodeRatios:
    """Sums log-ratios by episode; a pass over all rows of a mini-batch fills it once."""

    def __init__(self, rows: Sequence[Row]) -> None:
        names = dict.fromkeys(row.episode_id for row in rows)
        self._numbers = {name: number for number, name in enumerate(names)}
        self._sums_E = np.zeros(len(names))
        self.is_filled = False
        self._tokens_E = np.bincount(self._episodes(rows), minlength=len(names))

    def add(self, rows: Sequence[Row], log_ratio_M: Tensor) -> None:
        """Adds the log-ratios of `rows`; each row must be added once."""
        self.is_filled = True
        numbers_M = self._episodes(rows)
        values_M = log_ratio_M.detach().double().cpu().numpy()
        self._sums_E += np.bincount(numbers_M, weights=values_M, minlength=len(self._sums_E))

    def all_reduce(self, ranks: Ranks) -> None:
        """Sums over the ranks, each of which has added its own rows."""
        self._sums_E = ranks.all_reduce_sum(self._sums_E)
        self.is_filled = True

    def of(self, rows: Sequence[Row], like_M: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the mean and the sum of the episode of each token of `rows`."""
        numbers_M = self._episodes(rows)
        means_E = self._sums_E / self._tokens_E
        mean_M, sum_M = (
            torch.from_numpy(of_E[numbers_M]).to(like_M) for of_E in (means_E, self._sums_E)
        )
        return mean_M, sum_M

    def _episodes(self, rows: Sequence[Row]) -> NDArray[np.int64]:
        """Returns the number of each token's episode."""
        numbers = np.array([self._numbers[row.episode_id] for row in rows], np.int64)
        return np.repeat(numbers, np.array([len(row.positions) for row in rows], np.int64))
