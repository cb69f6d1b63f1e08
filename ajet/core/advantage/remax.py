"""ReMax: a token's return-to-go less the reward of the group's greedy episode.

    A_t = G_t - R(greedy)       Li et al. 2023 (ReMax, arXiv 2310.10505), algorithm 1

The greedy episode has the same task, is sampled at temperature 0 and is not trained. A group whose
greedy episode failed says nothing: its advantages are 0, and it is counted (metrics.py). `gamma`
discounts G_t once a token; the paper has 1.

Not covered: a greedy baseline for what is left of an episode at each turn.
"""

from collections.abc import Sequence

import numpy as np

from ajet.core.advantage.comparison import episodes_of
from ajet.core.advantage.credit import (
    AdvantageOptions,
    Advantages,
    EpisodeCredit,
    GroupCredit,
    TokenArrays,
)
from ajet.core.advantage.reinforce import reinforce


def remax(groups: Sequence[GroupCredit], options: AdvantageOptions) -> Advantages:
    """`EpisodeCredit.baseline` is the greedy episode's reward."""
    returns = reinforce(groups, options)
    return {e.episode_id: _relative(e, returns[e.episode_id]) for e in episodes_of(groups)}


def _relative(episode: EpisodeCredit, returns: TokenArrays) -> TokenArrays:
    if episode.baseline is None:
        return tuple(np.zeros_like(turn) for turn in returns)
    return tuple((turn - episode.baseline).astype(np.float32) for turn in returns)
