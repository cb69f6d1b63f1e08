"""A control that must not learn: each episode gets the reward of another one of the batch.

    ajet.trainer_common.algorithm.reward_shaping=shuffled.py->shuffled

The rewards of a batch are permuted over all its episodes, by a draw that depends on the episodes'
ids alone, so a resumed run draws the same. Whether an episode counts as a success stays true.
"""

import random
from collections.abc import Sequence

from ajet.core.advantage.credit import GroupCredit


def shuffled(groups: Sequence[GroupCredit]) -> list[float]:
    """Returns one reward for each episode, in the order of the groups."""
    episodes = [episode for group in groups for episode in group]
    rewards = [episode.reward for episode in episodes]
    random.Random(" ".join(episode.episode_id for episode in episodes)).shuffle(rewards)
    return rewards
