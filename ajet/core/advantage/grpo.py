"""GRPO: an episode's advantage is its reward, compared with those of the same task.

    rewards_G     1    0    0    1       mean .5, std .577 (divided by n - 1)
    advantage_G .87 -.87 -.87  .87      (R - mean) / (std + 1e-6), the same on all its tokens

    A_i = (R_i - mean(R)) / std(R)       Shao et al. 2024 (DeepSeekMath, arXiv 2402.03300), 4.1.2
    A_i =  R_i - mean(R)                 without std: Liu et al. 2025 (Dr. GRPO, arXiv 2503.20783)

The mean is over valid episodes and counts each once, however many turns or timelines it has. A lone
episode gets 0 (verl: its raw reward). **starpo** is the same function: StarPO (Wang et al. 2025,
RAGEN, arXiv 2504.20073) compares all turns of a trajectory as one action.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ajet.core.advantage.comparison import Comparison, compare_scores, spread_evenly
from ajet.core.advantage.credit import AdvantageOptions, Advantages, GroupCredit, StdScale
from ajet.core.advantage.estimator import Estimator

EPSILON = 1e-6


def grpo(groups: Sequence[GroupCredit], options: AdvantageOptions) -> Advantages:
    """Compares each episode with its group; without `normalize_std` as Dr. GRPO does."""
    return spread_evenly(groups, relative(compare_scores(groups), options.normalize_std))


def relative(rewards: Comparison, normalize_std: StdScale = False) -> NDArray[np.float64]:
    """Returns (R - mean(R)) / (std(R) + 1e-6) for each reward, with the mean and the standard
    deviation of its set, or the deviation of the whole batch."""
    # Equal rewards give exactly 0: the rounding error of the mean over 1e-6 would be a signal.
    centred_N = np.where(rewards.are_equal_N, 0.0, rewards.values_N - rewards.means_N)
    return over_std(centred_N, rewards, normalize_std)


def over_std(
    differences_N: NDArray[np.float64], rewards: Comparison, normalize_std: StdScale
) -> NDArray[np.float64]:
    """Divides differences between rewards by the standard deviation that `normalize_std` names."""
    if not normalize_std or not differences_N.any():
        return differences_N
    if normalize_std == "batch":
        return differences_N / (rewards.values_N.std(ddof=1) + EPSILON)
    # Times the inverse: a division rounds differently from the recorded runs.
    return differences_N * (1 / (rewards.stds_N + EPSILON))


GRPO = Estimator(grpo, reads=("normalize_std",), compares_group=True)
