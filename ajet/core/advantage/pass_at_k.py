"""Pass@k: the advantage of an episode is what it adds to the best reward of k episodes.

    rewards_G      3   1   0      k = 2
    sets with i    {3,1} {3,0} add 2 and 3;  {1,0} adds 1, {1,3} 0;  {0,..} 0
    advantage_G   2.5  .5   0

    A_i = mean over sets S of k episodes with i in it of (max of S - max of S without i)
        = sum over j below i of C(j - 1, k - 2) (R_i - R_j) / C(n - 1, k - 1),  R_1 <= ... <= R_n

Tang et al. 2025 (arXiv 2503.19595) for k = n, where only the best episode has an advantage: its
reward less the second best. For k < n the mean over sets is the unbiased estimate of the gradient
(Walder and Karkhanis 2025, PKPO, arXiv 2505.15201, with the leave-one-out baseline of k - 1). Equal
rewards, and a group of fewer than k, give exactly 0. `normalize_std` is as in verl's grpo_passk.
"""

from collections.abc import Sequence
from math import comb

import numpy as np
from numpy.typing import NDArray

from ajet.core.advantage.comparison import compare_scores, spread_evenly
from ajet.core.advantage.credit import AdvantageOptions, Advantages, GroupCredit
from ajet.core.advantage.estimator import Estimator
from ajet.core.advantage.grpo import over_std


def pass_at_k(groups: Sequence[GroupCredit], options: AdvantageOptions) -> Advantages:
    """Gives each episode its mean gain over the best of the others in sets of `pass_k`."""
    # Group by group: the binomial coefficients depend on the group's size.
    compared = compare_scores(groups)
    advantages_N = np.zeros(len(compared.values_N))
    for number in range(len(groups)):
        members = np.flatnonzero(compared.sets_N == number)
        advantages_N[members] = gains(compared.values_N[members], options.pass_k)
    return spread_evenly(groups, over_std(advantages_N, compared, options.normalize_std))


def gains(rewards_G: NDArray[np.float64], k: int | None) -> NDArray[np.float64]:
    """Returns the mean gain of each of a group's rewards; None for `k` is the group's size."""
    size = len(rewards_G)
    k = size if k is None else k
    gains_G = np.zeros(size)
    if k < 2 or size < k:
        return gains_G
    order = np.argsort(rewards_G, kind="stable")
    sorted_G = rewards_G[order]
    # C(j, k - 2) sets have i as the best and j as the second best (j from 0, in sorted order).
    weights_G = np.array([comb(j, k - 2) for j in range(size)], np.float64)
    weights_G /= comb(size - 1, k - 1)
    gains_G[order] = [float(weights_G[:i] @ (sorted_G[i] - sorted_G[:i])) for i in range(size)]
    return gains_G


PASS_AT_K = Estimator(pass_at_k, reads=("pass_k", "normalize_std"), compares_group=True)
