"""Generalised advantage estimation from a critic's value of each token, as in PPO.

    delta_t = r_t + gamma V_(t+1) - V_t
    A_t     = delta_t + gamma lam A_(t+1)            returns, the critic's targets: A_t + V_t

Schulman et al. 2015 (arXiv 1506.02438), equation 16. t counts an agent's trained tokens over all
its turns: the last token before a tool result is followed by the first one after it
(token_chain.py). A truncated episode counts as ended: no value is bootstrapped at its end.
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
from ajet.core.advantage.estimator import Estimator
from ajet.core.advantage.token_chain import discounted_sums, token_chains


def gae(groups: Sequence[GroupCredit], options: AdvantageOptions) -> Advantages:
    """Computes advantages from `EpisodeCredit.values`, the critic's value before each token."""
    chains = token_chains(groups)
    values_TC = chains.to_chains(_values)  # T tokens, C chains: one for each agent and episode
    # V_(t+1) is 0 after the end, as in the padding of shorter chains.
    next_values_TC = np.zeros_like(values_TC)
    next_values_TC[:-1] = values_TC[1:]
    deltas_TC = chains.rewards_TC + options.gamma * next_values_TC - values_TC
    return chains.to_turns(discounted_sums(deltas_TC, options.gamma * options.lam))


def returns(groups: Sequence[GroupCredit], advantages: Advantages) -> Advantages:
    """Returns the critic's targets: raw advantages plus the values that they are relative to."""
    targets: Advantages = {}
    for episode in episodes_of(groups):
        pairs = zip(advantages[episode.episode_id], _values(episode), strict=True)
        targets[episode.episode_id] = tuple(advantage + value for advantage, value in pairs)
    return targets


def _values(episode: EpisodeCredit) -> TokenArrays:
    assert episode.values is not None, f"episode {episode.episode_id}: gae needs a critic's values"
    return episode.values


GAE = Estimator(gae, reads=("gamma", "lam"), whitens=True, needs_critic=True)
