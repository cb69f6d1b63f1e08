"""ReMax: a token's return-to-go less the reward of the group's greedy episode.

    A_t = G_t - R(greedy)       Li et al. 2023 (ReMax, arXiv 2310.10505), algorithm 1

The greedy episode has the same task, is sampled at temperature 0 and is not trained. A group whose
greedy episode failed says nothing: its advantages are 0, and it is counted (metrics.py). `gamma`
discounts G_t once a token; the paper has 1.

Not covered: a greedy baseline for what is left of an episode at each turn.
"""

from collections.abc import Sequence

import numpy as np

from ajet.core.advantage.credit import (
    AdvantageOptions,
    Advantages,
    EpisodeCredit,
    GroupCredit,
    TokenArrays,
)
from ajet.core.advantage.token_chain import token_chains


def remax(groups: Sequence[GroupCredit], options: AdvantageOptions) -> Advantages:
    """`EpisodeCredit.baseline` is the greedy episode's reward."""
    chains = token_chains(groups)
    relative_TC = chains.returns_to_go(options.gamma) - chains.lay_out(_baseline)
    return chains.take(np.where(chains.lay_out(_is_known) > 0, relative_TC, 0.0))


def _baseline(episode: EpisodeCredit) -> TokenArrays:
    return episode.spread(np.full(len(episode.lengths_T), episode.baseline or 0.0))


def _is_known(episode: EpisodeCredit) -> TokenArrays:
    return episode.spread(np.full(len(episode.lengths_T), episode.baseline is not None))
