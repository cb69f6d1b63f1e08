"""RLOO (REINFORCE leave-one-out): compares an episode with the mean of the others.

    rewards_G     1     0     0     1
    others' mean  1/3   2/3   2/3   1/3
    advantage_G   2/3  -2/3  -2/3   2/3        A_i = R_i - 1/(n-1) sum of the other R_j
                                               = n/(n-1) (R_i - mean(R))

Ahmadian et al. 2024 (Back to Basics, arXiv 2402.14740); Kool et al. 2019. The others' mean does not
depend on the episode's actions, so the gradient is unbiased. Equal rewards, and a lone episode,
give exactly 0 (verl: a lone episode's raw reward).
"""

from collections.abc import Sequence

import numpy as np

from ajet.core.advantage.comparison import compare_scores, spread_evenly
from ajet.core.advantage.credit import AdvantageOptions, Advantages, GroupCredit
from ajet.core.advantage.estimator import Estimator
from ajet.core.advantage.grpo import relative


def rloo(groups: Sequence[GroupCredit], options: AdvantageOptions) -> Advantages:
    """Subtracts the mean reward of the other episodes from each reward."""
    compared = compare_scores(groups)
    scale_N = compared.counts_N / np.maximum(compared.counts_N - 1, 1)
    return spread_evenly(groups, relative(compared) * scale_N)


RLOO = Estimator(rloo, compares_group=True)
