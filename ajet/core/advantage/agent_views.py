"""The groups of a step as each of their agents sees them, where agents earn separate rewards.

    episode   agents_T   p  q  p        agent_rewards   p: 1   q: -1     (zero-sum)

    view of p   reward  1   lengths_T   4  0  5
    view of q   reward -1   lengths_T   0  3  0

The advantages of each view are computed as if other agents were part of the environment: an agent
is compared with itself in the other episodes of its group. An agent without a separate reward in an
episode has the episode's reward there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ajet.core.advantage.comparison import episodes_of
from ajet.core.advantage.credit import Advantages, EpisodeCredit, GroupCredit, TokenArrays


def agent_views(groups: Sequence[GroupCredit]) -> dict[str, list[GroupCredit]]:
    """Returns the groups of each agent, with the episodes in which it has a trained token; empty
    where no agent has a separate reward."""
    episodes = episodes_of(groups)
    if not any(episode.agent_rewards for episode in episodes):
        return {}
    agents = dict.fromkeys(agent for episode in episodes for agent in _trained(episode))
    return {
        agent: [
            tuple(_view(episode, agent) for episode in g if agent in _trained(episode))
            for g in groups
        ]
        for agent in agents
    }


def merge_views(groups: Sequence[GroupCredit], by_agent: Mapping[str, Advantages]) -> Advantages:
    """Returns one array for each turn of each episode, from the view of the agent who made it."""
    return {
        episode.episode_id: tuple(
            by_agent[agent][episode.episode_id][turn] if length else np.zeros(0, np.float32)
            for turn, (agent, length) in enumerate(
                zip(episode.agents_T, episode.lengths_T, strict=True)
            )
        )
        for episode in episodes_of(groups)
    }


def _trained(episode: EpisodeCredit) -> list[str]:
    pairs = zip(episode.agents_T, episode.lengths_T, strict=True)
    return [agent for agent, length in pairs if length]


def _view(episode: EpisodeCredit, agent: str) -> EpisodeCredit:
    reward = episode.agent_rewards.get(agent, episode.reward)
    is_own_T = np.array([turn_agent == agent for turn_agent in episode.agents_T])
    view = replace(
        episode,
        lengths_T=np.where(is_own_T, episode.lengths_T, 0),
        penalties=_own(episode.penalties, is_own_T.tolist()),
        values=_own(episode.values, is_own_T.tolist()),
        agent_rewards={},
    )
    return view.with_reward(reward, np.where(is_own_T, episode.turn_rewards_T, 0.0))


def _own(arrays: TokenArrays | None, is_own_T: Sequence[bool]) -> TokenArrays | None:
    if arrays is None:
        return None
    pairs = zip(arrays, is_own_T, strict=True)
    return tuple(array if is_own else array[:0] for array, is_own in pairs)
