"""GRPO: the advantage of an episode relative to the other episodes of its group.

    rewards_G     1    0    0    1       mean 0.5, std 0.577 (unbiased, as torch.std and verl)
    advantage_G   .87 -.87 -.87  .87     (R - mean) / (std + 1e-6), the same on all its tokens

    A_i = (R_i - mean(R)) / std(R)       Shao et al. 2024 (DeepSeekMath, arXiv 2402.03300), 4.1.2
    A_i =  R_i - mean(R)                 without std: Liu et al. 2025 (Dr. GRPO, arXiv 2503.20783)

The mean is over valid episodes, and counts each once however many turns or timelines it has. In a
group with one valid episode, or with equal rewards, all advantages are exactly 0. (verl gives a
lone episode its raw reward.)

**starpo** is this function under another name: StarPO (Wang et al. 2025, RAGEN, arXiv 2504.20073)
takes a whole trajectory of an environment, all its turns, as the one action that is compared.

Not covered: credit for single turns; baselines across groups.
"""

from collections.abc import Sequence

from ajet.core.advantage.comparison import compare_scores, spread_evenly
from ajet.core.advantage.credit import AdvantageOptions, Advantages, GroupCredit


def grpo(groups: Sequence[GroupCredit], options: AdvantageOptions) -> Advantages:
    """Compares each episode with its group; ``normalize_std=False`` leaves out the division, as Dr.
    GRPO does.
    """
    compared = compare_scores(groups)
    return spread_evenly(groups, compared.centred(normalize_std=options.normalize_std))
