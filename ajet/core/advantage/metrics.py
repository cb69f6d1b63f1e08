"""What a step's advantages say about the batch.

    advantage/zero_tokens       share of trained tokens that the update learns nothing from
    advantage/zero_episodes     share of episodes of which that holds for every token
    advantage/mean, abs_mean    over tokens, as the update gets them
    gigpo/anchor_group_size     steps that are compared with each other, mean over states
    gigpo/singleton_steps       share of steps that are alone with their state
    remax/no_baseline           share of episodes whose greedy episode failed

Not covered: what shaping and clipping count themselves (shaping.py, estimate.py).
"""

from collections.abc import Sequence

import numpy as np

from ajet.core.advantage.comparison import episodes_of
from ajet.core.advantage.credit import Advantages, GroupCredit
from ajet.core.advantage.gigpo import anchor_metrics


def advantage_metrics(
    name: str, groups: Sequence[GroupCredit], advantages: Advantages
) -> dict[str, float]:
    """Of the estimator `name`, before and after it; nothing for an empty batch."""
    episodes = [np.concatenate(turns) for turns in advantages.values() if any(map(len, turns))]
    if not episodes:
        return {}
    tokens = np.concatenate(episodes)
    metrics = {
        "advantage/zero_tokens": float((tokens == 0).mean()),
        "advantage/zero_episodes": float(np.mean([not each.any() for each in episodes])),
        "advantage/mean": float(tokens.mean(dtype=np.float64)),
        "advantage/abs_mean": float(np.abs(tokens).mean(dtype=np.float64)),
    }
    return metrics | _estimator_metrics(name, groups)


def _estimator_metrics(name: str, groups: Sequence[GroupCredit]) -> dict[str, float]:
    if name == "gigpo":
        return anchor_metrics(groups)
    if name == "remax":
        unknown = [episode.baseline is None for episode in episodes_of(groups)]
        return {"remax/no_baseline": float(np.mean(unknown))}
    return {}
