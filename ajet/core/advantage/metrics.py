"""Metrics of a step's advantages.

    advantage/zero_tokens       share of trained tokens with advantage 0
    advantage/zero_episodes     share of episodes with advantage 0 on every token
    advantage/mean, abs_mean    over tokens, after whitening and clipping
    gigpo/anchor_group_size     mean number of steps in an anchor group
    gigpo/singleton_steps       share of steps that are alone in their anchor group
    remax/no_baseline           share of episodes whose greedy episode failed

Those of one estimator are computed by `Estimator.metrics`.
"""

from collections.abc import Sequence

import numpy as np

from ajet.core.advantage.credit import Advantages, GroupCredit
from ajet.core.advantage.estimator import Estimator


def advantage_metrics(
    estimator: Estimator, groups: Sequence[GroupCredit], advantages: Advantages
) -> dict[str, float]:
    """Returns nothing for an empty batch."""
    episodes = [np.concatenate(turns) for turns in advantages.values() if any(map(len, turns))]
    if not episodes:
        return {}
    tokens = np.concatenate(episodes)
    metrics = {
        "advantage/zero_tokens": float((tokens == 0).mean()),
        "advantage/zero_episodes": float(np.mean([not episode.any() for episode in episodes])),
        "advantage/mean": float(tokens.mean(dtype=np.float64)),
        "advantage/abs_mean": float(np.abs(tokens).mean(dtype=np.float64)),
    }
    return metrics | (estimator.metrics(groups) if estimator.metrics else {})
