"""GDPO: several rewards of an episode, each normalised separately within the group.

    rewards of a group       correct 1 1 0 0     format 1 0 1 0     weights 1 and 1
    each normalised          .87 .87 -.87 -.87   .87 -.87 .87 -.87
    sum                      1.73 0 0 -1.73      GRPO of the sums 2 1 1 0: 1.22 0 0 -1.22

    A_i = sum over rewards k of w_k (r_ik - mean r_k) / (std r_k + 1e-6), whitened over the batch

Liu et al. 2026 (GDPO, arXiv 2601.05242). A sum normalised as a whole gives episodes with different
rewards but equal sums the same advantage. The rewards are `log_metrics` of the workflow or the
judge, named by `reward_weights`; an episode whose reward ajet set itself (a malformed reply, say)
has that reward for each. Whitening is over tokens as in verl; TRL whitens over episodes.
"""

from collections.abc import Sequence

import numpy as np

from ajet.core.advantage.comparison import Comparison, compare_scores, episodes_of, spread_evenly
from ajet.core.advantage.credit import AdvantageOptions, Advantages, GroupCredit
from ajet.core.advantage.estimator import Estimator
from ajet.core.advantage.grpo import relative


def gdpo(groups: Sequence[GroupCredit], options: AdvantageOptions) -> Advantages:
    """Adds the weighted comparisons of each reward with its group."""
    episodes, sets_N = episodes_of(groups), compare_scores(groups).sets_N
    total_N = np.zeros(len(episodes))
    for name, weight in options.reward_weights.items():
        rewards_N = np.array([e.log_metrics.get(name, e.reward) for e in episodes], np.float64)
        compared = Comparison(rewards_N, sets_N)
        total_N += weight * relative(compared, options.normalize_std)
    return spread_evenly(groups, total_N)


GDPO = Estimator(
    gdpo,
    reads=("reward_weights", "normalize_std"),
    whitens=True,
    compares_group=True,
    compares_named_rewards=True,
)
