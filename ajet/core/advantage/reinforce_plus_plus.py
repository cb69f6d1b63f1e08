"""REINFORCE++: a token's return-to-go, whitened over the whole batch.

    A_t = (G_t - mean(G)) / std(G)      over all trained tokens of the batch
    G_t = sum over k >= t of gamma^(k-t) (r_k - beta KL_k)

Hu et al. 2025 (REINFORCE++, arXiv 2501.03262), global advantage normalisation; the KL is in the
reward with use_kl_in_reward. This function gives the returns; estimate.py whitens them, unless
`whiten_advantages` is false.

Not covered: a comparison within groups (reinforce_plus_plus_baseline.py).
"""

from collections.abc import Sequence

from ajet.core.advantage.credit import AdvantageOptions, Advantages, GroupCredit
from ajet.core.advantage.reinforce import reinforce


def reinforce_plus_plus(groups: Sequence[GroupCredit], options: AdvantageOptions) -> Advantages:
    """Before whitening it is plain REINFORCE."""
    return reinforce(groups, options)
