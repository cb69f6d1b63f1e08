"""REINFORCE++ with a baseline: the reward less its group's mean, whitened over the whole batch.

    A_i = R_i - mean(R of its group);   then (A - mean(A)) / std(A) over all tokens of the batch

Hu et al. 2025 (REINFORCE++, arXiv 2501.03262), its variant with a baseline. The deviation
is the batch's: an easy group with one failure does not get larger steps than the others. This
function gives A before whitening; estimate.py whitens it, unless `whiten_advantages` is false.
Equal rewards, and a lone episode, are exactly 0 before. (verl gives a lone episode its raw reward.)

Not covered: credit for single turns or tokens.
"""

from collections.abc import Sequence

from ajet.core.advantage.comparison import compare_scores, spread_evenly
from ajet.core.advantage.credit import AdvantageOptions, Advantages, GroupCredit


def reinforce_plus_plus_baseline(
    groups: Sequence[GroupCredit], options: AdvantageOptions
) -> Advantages:
    """Nothing of the options concerns it."""
    return spread_evenly(groups, compare_scores(groups).centred())
