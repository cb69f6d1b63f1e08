"""REINFORCE++: the advantage is a token's return-to-go, whitened over the whole batch.

    A_t = (G_t - mean(G)) / std(G)      over all trained tokens of the batch
    G_t = sum over k >= t of gamma^(k-t) (r_k - beta KL_k)

Hu et al. 2025 (REINFORCE++, arXiv 2501.03262), with global advantage normalisation;
use_kl_in_reward puts the KL into the reward. This function gives the returns; estimate.py whitens
them, unless `whiten_advantages` is false.

Not covered: a comparison within groups (reinforce_plus_plus_baseline.py).
"""

from collections.abc import Sequence

from ajet.core.advantage.credit import AdvantageOptions, Advantages, GroupCredit
from ajet.core.advantage.reinforce import reinforce


def reinforce_plus_plus(groups: Sequence[GroupCredit], options: AdvantageOptions) -> Advantages:
    """Returns the returns-to-go before whitening, which are those of plain REINFORCE."""
    return reinforce(groups, options)
