"""ReMax: the advantage is a token's return-to-go less the reward of the group's greedy episode.

    A_t = G_t - R(greedy)       Li et al. 2023 (ReMax, arXiv 2310.10505), algorithm 1

The greedy episode has the same task, is sampled at temperature 0 and is not trained. A group whose
greedy episode failed has advantages of 0 (`remax/no_baseline` counts them). `gamma` discounts G_t
once for each token; the paper has 1.
"""

from collections.abc import Sequence

import numpy as np

from ajet.core.advantage.comparison import episodes_of
from ajet.core.advantage.credit import AdvantageOptions, Advantages, GroupCredit
from ajet.core.advantage.estimator import Estimator
from ajet.core.advantage.reinforce import reinforce


def remax(groups: Sequence[GroupCredit], options: AdvantageOptions) -> Advantages:
    """Subtracts `EpisodeCredit.baseline`, the greedy episode's reward, from each return-to-go."""
    advantages = {}
    returns = reinforce(groups, options)
    for episode in episodes_of(groups):
        turns = returns[episode.episode_id]
        if episode.baseline is None:
            advantages[episode.episode_id] = tuple(map(np.zeros_like, turns))
        else:
            advantages[episode.episode_id] = tuple(
                (turn - episode.baseline).astype(np.float32) for turn in turns
            )
    return advantages


def baseline_metrics(groups: Sequence[GroupCredit]) -> dict[str, float]:
    """Returns the share of episodes whose greedy episode failed."""
    unknown = [episode.baseline is None for episode in episodes_of(groups)]
    return {"remax/no_baseline": float(np.mean(unknown))}


REMAX = Estimator(remax, reads=("gamma",), needs_greedy_episode=True, metrics=baseline_metrics)
