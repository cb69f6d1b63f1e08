"""The input of the estimators: judged episodes as numbers, without tokens, messages or policy.

    episode of three turns (the second of an agent that is not trained)

    reward            1.0                 R, shaped
    turn_rewards_T    0.2   0.0   0.8     add up to R; the last one has what no turn was given
    state_keys_T      "a"   None  "c"     equal keys of one group are equal states
    lengths_T         4     0     6       trained tokens of each turn
    agents_T          "p/p" "u/u" "p/p"   name and target tag, which together identify it
    agent_rewards     {"p/p": 1.0}        where agents earn rewards of their own (agent_views.py)

`penalties` and `values` have one array for each turn, with one number for each trained token; they
are set where the reward contains a KL or the estimator needs a critic. An episode that nobody
rewarded, because the run needs no rewards, counts as 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ajet.core.trajectory.trajectory import Group, Trajectory
from ajet.core.trajectory.turn import Turn

TokenArrays = tuple[NDArray[np.float32], ...]
"""Token arrays: one for each turn, with one number for each trained token."""
Advantages = dict[str, TokenArrays]
"""The keys are episode ids."""
StepBaseline = Literal["others", "none"]
StdScale = bool | Literal["batch"]
"""Whether differences are divided by a standard deviation: that of their set, or of the batch."""


@dataclass(frozen=True, slots=True)
class EpisodeCredit:
    """Holds the numbers of one valid episode; checks that its arrays over turns have one length."""

    episode_id: str
    group_id: str
    reward: float
    turn_rewards_T: NDArray[np.float64]
    state_keys_T: tuple[str | None, ...]
    lengths_T: NDArray[np.int64]
    agents_T: tuple[str, ...]
    tag: str = ""
    response_length: int = 0  # tokens after the first prompt, including tool results
    baseline: float | None = None  # ReMax: reward of the greedy episode of its group
    penalties: TokenArrays | None = None  # KL penalty of each token
    values: TokenArrays | None = None  # the critic's value of the state before each token
    agent_rewards: Mapping[str, float] = field(default_factory=dict)  # by a name of `agents_T`
    log_metrics: Mapping[str, float] = field(default_factory=dict)  # of the workflow and the judge

    def __post_init__(self) -> None:
        lengths = {
            name: len(getattr(self, name))
            for name in ("turn_rewards_T", "state_keys_T", "lengths_T", "agents_T")
        }
        if len(set(lengths.values())) != 1:
            raise ValueError(f"episode {self.episode_id}: unequal numbers of turns {lengths}")

    @property
    def num_tokens(self) -> int:
        return int(self.lengths_T.sum())

    @property
    def score(self) -> float:
        """Returns what groups compare: the reward less all KL penalties."""
        return self.reward - sum(float(each.sum(dtype=np.float64)) for each in self.penalties or ())

    def with_reward(self, reward: float, turn_rewards_T: NDArray[np.float64]) -> EpisodeCredit:
        """Returns the episode with another reward and these turn rewards; what they lack of the
        reward goes to the last trained turn."""
        turn_rewards_T = turn_rewards_T.copy()
        trained = np.flatnonzero(self.lengths_T)
        if len(trained):
            turn_rewards_T[trained[-1]] += reward - turn_rewards_T.sum()
        return replace(self, reward=reward, turn_rewards_T=turn_rewards_T)

    def spread(self, per_turn: Sequence[float] | NDArray[np.float64]) -> TokenArrays:
        """Gives the number of each turn to all of its trained tokens."""
        pairs = zip(self.lengths_T, per_turn, strict=True)
        return tuple(np.full(length, value, np.float32) for length, value in pairs)


GroupCredit = tuple[EpisodeCredit, ...]
"""The valid episodes of one task, in the order of `rollout_index`."""


@dataclass(frozen=True, slots=True)
class AdvantageOptions:
    """Holds the options of all estimators; each estimator reads its own."""

    normalize_std: StdScale = True  # grpo, gigpo: divide by the group's standard deviation
    gamma: float = 1.0  # per token: gae, reinforce, reinforce_plus_plus, remax
    lam: float = 1.0  # gae
    step_reward_gamma: float = 1.0  # per turn: gigpo, step_reinforce
    episode_reward_weight: float = 1.0  # gigpo
    step_reward_weight: float = 1.0  # gigpo
    step_baseline: StepBaseline = "others"  # step_reinforce
    reward_weights: Mapping[str, float] = field(default_factory=dict)  # gdpo
    pass_k: int | None = None  # pass_at_k; None: the group's size


RewardGrouping = Literal["none", "group", "tag", "batch"]


def credit_of(group: Group) -> GroupCredit:
    """Returns the numbers of the group's valid episodes."""
    ordered = sorted(group.valid, key=lambda t: t.workflow_task.rollout_index)
    return tuple(_episode(trajectory, group.baseline) for trajectory in ordered)


def _episode(trajectory: Trajectory, baseline: float | None) -> EpisodeCredit:
    turns = trajectory.turns
    reward = trajectory.reward or 0.0
    return EpisodeCredit(
        episode_id=trajectory.episode_id,
        group_id=trajectory.group_id,
        reward=reward,
        turn_rewards_T=_turn_rewards(trajectory, reward),
        state_keys_T=tuple(turn.state_key for turn in turns),
        lengths_T=np.array(
            [len(turn.completion.token_ids) if turn.trainable else 0 for turn in turns], np.int64
        ),
        agents_T=tuple(map(_agent, turns)),
        tag=str(trajectory.workflow_task.task.metadata.get("tag", "")),
        response_length=_response_length(trajectory),
        baseline=baseline,
        log_metrics=trajectory.output.log_metrics if trajectory.output else {},
        agent_rewards={
            _agent(turn): trajectory.agent_rewards[turn.agent_name]
            for turn in turns
            if turn.trainable and trajectory.agent_rewards
        },
    )


def _agent(turn: Turn) -> str:
    return f"{turn.agent_name}/{turn.target_tag}"


def _response_length(trajectory: Trajectory) -> int:
    """Returns the longest timeline's response length, which `data.max_response_length` limits."""
    completions = [turn.completion for turn in trajectory.turns]
    if not completions:
        return 0
    longest = max(len(each.prompt_ids) + len(each.token_ids) for each in completions)
    return longest - len(completions[0].prompt_ids)


def _turn_rewards(trajectory: Trajectory, reward: float) -> NDArray[np.float64]:
    """Returns a reward for each turn; they add up to `reward`.

    What no turn was given (a judge's reward, or one for a limit) goes to the last trained turn.
    """
    rewards_T = np.array([turn.reward or 0.0 for turn in trajectory.turns], np.float64)
    trained = [index for index, turn in enumerate(trajectory.turns) if turn.trainable]
    if trained:
        rewards_T[trained[-1]] += reward - rewards_T.sum()
    return rewards_T
