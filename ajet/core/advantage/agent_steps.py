"""The trained turns of an episode, agent by agent, and what came of each.

    turn             0     1     2     3
    agent            p     q     p     p
    trained tokens   4     3     0     5        (the third turn is not trained)
    reward          .1     0    .2    .7

    steps of p: turns 0 and 3, rewards .1 + 0 + .2 and .7
    steps of q: turn 1, reward 0 + .2 + .7

To an agent the others are part of its environment: what happens until its next step came of this
one. What happened before its first step, it had no part in. With one agent that is trained
everywhere, a step is a turn and its reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ajet.core.advantage.comparison import episodes_of
from ajet.core.advantage.credit import Advantages, EpisodeCredit, GroupCredit


@dataclass(frozen=True, slots=True)
class AgentSteps:
    """One agent's trained turns in one episode."""

    agent: str
    turns_S: NDArray[np.int64]
    rewards_S: NDArray[np.float64]  # of the environment and the judge, without penalties


def agent_steps(episode: EpisodeCredit) -> list[AgentSteps]:
    """In the order in which the agents first speak; whoever is not trained is absent."""
    turns: dict[str, list[int]] = {}
    for turn, (agent, length) in enumerate(zip(episode.agents_T, episode.lengths_T, strict=True)):
        if length:
            turns.setdefault(agent, []).append(turn)
    return [
        AgentSteps(agent, np.array(own), np.add.reduceat(episode.turn_rewards_T, own))
        for agent, own in turns.items()
    ]


class StepEntry(NamedTuple):
    """Where a step stands; episodes and groups by their number in the batch."""

    group: int
    episode: int
    turn: int
    index: int  # among its agent's steps in the episode
    agent: str
    state_key: str | None


@dataclass(frozen=True, slots=True)
class StepTable:
    """All steps of a batch, and the discounted return-to-go of each."""

    groups: Sequence[GroupCredit]
    steps_N: list[StepEntry]
    returns_N: NDArray[np.float64]

    def spread(self, advantages_N: NDArray[np.float64]) -> Advantages:
        """Each step's number on all its tokens."""
        episodes = episodes_of(self.groups)
        per_turn = [np.zeros(len(episode.lengths_T)) for episode in episodes]
        for step, advantage in zip(self.steps_N, advantages_N, strict=True):
            per_turn[step.episode][step.turn] = advantage
        pairs = zip(episodes, per_turn, strict=True)
        return {episode.episode_id: episode.spread(values_T) for episode, values_T in pairs}


def step_table(groups: Sequence[GroupCredit], gamma: float) -> StepTable:
    """`gamma` discounts once a step of the agent; a step's penalties are taken off its reward."""
    steps_N: list[StepEntry] = []
    returns: list[float] = []
    numbered = [(number, episode) for number, group in enumerate(groups) for episode in group]
    for number, (group, episode) in enumerate(numbered):
        for own in agent_steps(episode):
            for index, turn in enumerate(own.turns_S.tolist()):
                key = episode.state_keys_T[turn]
                steps_N.append(StepEntry(group, number, turn, index, own.agent, key))
            returns += _returns_to_go(_less_penalties(episode, own), gamma)
    return StepTable(groups, steps_N, np.array(returns, np.float64))


def _less_penalties(episode: EpisodeCredit, own: AgentSteps) -> list[float]:
    rewards = own.rewards_S.tolist()
    if episode.penalties is None:
        return rewards
    taken = [float(episode.penalties[turn].sum(dtype=np.float64)) for turn in own.turns_S]
    return [reward - penalty for reward, penalty in zip(rewards, taken, strict=True)]


def _returns_to_go(rewards: list[float], gamma: float) -> list[float]:
    returns, following = [0.0] * len(rewards), 0.0
    for index in reversed(range(len(rewards))):
        returns[index] = following = rewards[index] + gamma * following
    return returns
