"""OPO: the baseline is the group's mean reward, weighted with the episodes' lengths.

    rewards_G     1    0    0            baseline (2*1 + 4*0 + 4*0) / (2 + 4 + 4) = 0.2
    tokens_G      2    4    4
    advantage_G  .8  -.2  -.2            A_i = R_i - sum(l_j R_j) / sum(l_j)

Hao et al. 2025 (On-Policy RL with Optimal Reward Baseline, arXiv 2505.23585): the baseline
of least variance if the squared gradient of an episode grows with its trained tokens.
Equal rewards, and a lone episode, give exactly 0. (verl gives a lone episode its raw reward.)
"""

from collections.abc import Sequence

import numpy as np

from ajet.core.advantage.comparison import compare_scores, episodes_of, spread_evenly
from ajet.core.advantage.credit import AdvantageOptions, Advantages, GroupCredit
from ajet.core.advantage.estimator import Estimator


def opo(groups: Sequence[GroupCredit], options: AdvantageOptions) -> Advantages:
    """Subtracts the group's length-weighted mean from each reward."""
    compared = compare_scores(groups)
    lengths_N = np.array([episode.num_tokens for episode in episodes_of(groups)], np.float64)
    # At least 1: a group without trained tokens has no baseline and trains nothing.
    tokens_N = np.maximum(compared.sum_of(lengths_N), 1)
    baselines_N = compared.sum_of(lengths_N * compared.values_N) / tokens_N
    return spread_evenly(groups, np.where(compared.are_equal_N, 0, compared.values_N - baselines_N))


OPO = Estimator(opo, compares_group=True)
