"""The input of the estimators: judged episodes as numbers, without tokens, messages or policy.

episode of three turns (the second of an agent that is not trained)

reward            1.0                 R, shaped
turn_rewards_T    0.2   0.0   0.8     add up to R: the last trained turn gets the rest
state_keys_T      "a"   None  "c"     equal keys of one group are equal states
lengths_T         4     0     6       trained tokens of each turn
agents_T          "p/p" "u/u" "p/p"   name and target tag, which together identify it
agent_rewards     {"p/p": 1.0}        where agents earn separate rewards (agent_views.py)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

TokenArrays = tuple[NDArray[np.float32], ...]
"""One array for each turn, with one number for each trained token."""
Advantages = dict[str, TokenArrays]
"""The keys are episode ids."""
StdScale = bool | Literal["batch"]


@dataclass(frozen=True, slots=True)
class EpisodeCredit:
    """The numbers of one valid episode."""

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
        """What groups compare: the reward less the KL penalties of all tokens."""
        return self.reward - sum(float(turn.sum(dtype=np.float64)) for turn in self.penalties or ())

    def with_reward(self, reward: float, turn_rewards_T: NDArray[np.float64]) -> EpisodeCredit:
        """Returns the episode with another reward and these turn rewards; the difference between
        the reward and their sum goes to the last trained turn."""
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


@dataclass(frozen=True)
class AdvantageOptions:
    """The options of all estimators (`Estimator.reads` says who reads which). The config inherits
    them as keys."""

    normalize_std: Annotated[
        StdScale,
        Field(
            description="Divide advantages by the group's standard deviation; batch by that of all "
            "rewards of the batch."
        ),
    ] = True
    gamma: Annotated[float, Field(ge=0, le=1, description="Discount per token.")] = 1.0
    lam: Annotated[float, Field(ge=0, le=1, description="GAE's lambda, per token.")] = 1.0
    step_reward_gamma: Annotated[
        float, Field(ge=0, le=1, description="Discount per turn, of gigpo and step_reinforce.")
    ] = 1.0
    episode_reward_weight: Annotated[
        float, Field(ge=0, description="Weight of gigpo's episode advantage.")
    ] = 1.0
    step_reward_weight: Annotated[
        float, Field(ge=0, description="Weight of gigpo's step advantage.")
    ] = 1.0
    step_baseline: Annotated[
        Literal["others", "none"],
        Field(
            description="What step_reinforce subtracts: the others' mean return at the same turn, "
            "or nothing."
        ),
    ] = "others"
    reward_weights: Annotated[
        dict[str, float],
        Field(
            default={},
            description="gdpo: the rewards that it normalises apart, by their names in "
            "log_metrics, each with its weight.",
        ),
    ] = field(default_factory=dict)
    pass_k: Annotated[
        int | None,
        Field(
            ge=2,
            description="pass_at_k: episodes of which the best one counts; null is num_repeat.",
        ),
    ] = None
