"""The trained turns of an episode by agent, and the reward that follows each of them.

    turn             0     1     2     3
    agent            p     q     p     p
    trained tokens   4     3     0     5        (the third turn is not trained)
    reward          .1     0    .2    .7

    steps of p: turns 0 and 3, rewards .1 + 0 + .2 and .7
    steps of q: turn 1, reward 0 + .2 + .7

For an agent, other agents are part of its environment: all rewards until its next step belong to
the current one, and rewards before its first step are not counted.
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
    """One agent's trained turns in one episode, and the reward of each."""

    agent: str
    turns_S: NDArray[np.int64]
    rewards_S: NDArray[np.float64]  # from the environment and the judge, without penalties


def agent_steps(episode: EpisodeCredit) -> list[AgentSteps]:
    """Returns the steps of each trained agent, in the order in which the agents first speak."""
    turns: dict[str, list[int]] = {}
    for turn, (agent, length) in enumerate(zip(episode.agents_T, episode.lengths_T, strict=True)):
        if length:
            turns.setdefault(agent, []).append(turn)
    # reduceat sums from each index up to the next one, the last to the end of the episode.
    return [
        AgentSteps(agent, np.array(indices), np.add.reduceat(episode.turn_rewards_T, indices))
        for agent, indices in turns.items()
    ]


class StepEntry(NamedTuple):
    """One step; `group` and `episode` are indices in the batch, `turn` one in the episode."""

    group: int
    episode: int
    turn: int
    agent_step: int  # index among its agent's steps in the episode
    agent: str
    state_key: str | None


@dataclass(frozen=True, slots=True)
class StepTable:
    """All steps of a batch and the discounted return-to-go of each."""

    groups: Sequence[GroupCredit]
    steps_N: list[StepEntry]
    returns_N: NDArray[np.float64]

    def spread(self, advantages_N: NDArray[np.float64]) -> Advantages:
        """Gives each step's advantage to all of its tokens."""
        episodes = episodes_of(self.groups)
        per_turn = [np.zeros(len(episode.lengths_T)) for episode in episodes]
        for step, advantage in zip(self.steps_N, advantages_N, strict=True):
            per_turn[step.episode][step.turn] = advantage
        pairs = zip(episodes, per_turn, strict=True)
        return {episode.episode_id: episode.spread(values_T) for episode, values_T in pairs}


def step_table(groups: Sequence[GroupCredit], gamma: float) -> StepTable:
    """Collects the steps of a batch. `gamma` discounts once for each step of the agent; the
    penalties of a step's tokens are subtracted from its reward."""
    steps_N: list[StepEntry] = []
    returns: list[float] = []
    numbered = [(number, episode) for number, group in enumerate(groups) for episode in group]
    for number, (group, episode) in enumerate(numbered):
        for steps in agent_steps(episode):
            rewards = steps.rewards_S.tolist()
            if episode.penalties is not None:
                penalties = [
                    float(episode.penalties[t].sum(dtype=np.float64)) for t in steps.turns_S
                ]
                rewards = [r - penalty for r, penalty in zip(rewards, penalties, strict=True)]
            agent_returns, return_to_go = [0.0] * len(rewards), 0.0
            for index in reversed(range(len(rewards))):
                return_to_go = rewards[index] + gamma * return_to_go
                agent_returns[index] = return_to_go
            returns += agent_returns
            for agent_step, turn in enumerate(steps.turns_S.tolist()):
                key = episode.state_keys_T[turn]
                steps_N.append(StepEntry(group, number, turn, agent_step, steps.agent, key))
    return StepTable(groups, steps_N, np.array(returns, np.float64))
