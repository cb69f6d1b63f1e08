"""REINFORCE++ with a baseline: the reward less the mean of its group, whitened over the batch.

    A_i = R_i - mean(R of its group);   then (A - mean(A)) / std(A) over all tokens of the batch

Hu et al. 2025 (REINFORCE++, arXiv 2501.03262), its variant with a baseline. The deviation is that
of the batch, so an easy group with one failure does not get larger steps than others. Equal
rewards, and a lone episode, give exactly 0 before whitening (verl: a lone episode's raw reward).
"""

from collections.abc import Sequence

from ajet.core.advantage.comparison import compare_scores, spread_evenly
from ajet.core.advantage.credit import AdvantageOptions, Advantages, GroupCredit
from ajet.core.advantage.estimator import Estimator
from ajet.core.advantage.grpo import relative


def reinforce_plus_plus_baseline(
    groups: Sequence[GroupCredit], options: AdvantageOptions
) -> Advantages:
    """Subtracts the group's mean from each reward."""
    return spread_evenly(groups, relative(compare_scores(groups)))


REINFORCE_PLUS_PLUS_BASELINE = Estimator(
    reinforce_plus_plus_baseline, whitens=True, compares_group=True
)
