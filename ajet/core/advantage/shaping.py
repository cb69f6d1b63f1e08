"""Reward shaping before the estimator: the user's, over-long penalty, normalisation, clipping.

    reward R                        1.0        turn rewards   .2   .8
    - over-long penalty            -0.5        0.5            .2   .3
    normalised: (R - mean) / std    ...        scaled by 1/std; the last one less the mean
    clipped to +- clip              ...        the last one takes the difference

The order is ROLL's. Turn rewards keep adding up to the reward: a change of the whole reward goes to
the last trained turn. The over-long penalty is DAPO's (Yu et al. 2025, arXiv 2503.14476, equation
13): 0 until `buffer` tokens before the ceiling, then linear to `-factor` at it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ajet.core.advantage.comparison import Comparison, compare_scores, episodes_of
from ajet.core.advantage.credit import EpisodeCredit, GroupCredit
from ajet.core.advantage.grpo import EPSILON, relative
from ajet.core.errors import KeysConflict

RewardGrouping = Literal["none", "group", "tag", "batch"]


@dataclass(frozen=True, slots=True)
class RewardShaping:
    """The settings of reward shaping; the defaults change nothing."""

    overlong_buffer: int = 0  # tokens; 0 is off
    overlong_factor: float = 1.0
    max_response_length: int = 15000
    grouping: RewardGrouping = "none"
    normalize_std: bool = False
    clip: float | None = None
    user_function: Callable[[Sequence[GroupCredit]], list[float]] | None = None  # comes first

    def __post_init__(self) -> None:
        if self.overlong_buffer > self.max_response_length:
            raise KeysConflict(
                f"ajet.trainer_common.algorithm.overlong.buffer_len: {self.overlong_buffer} is "
                f"more than ajet.data.max_response_length ({self.max_response_length})"
            )


@dataclass(frozen=True, slots=True)
class ShapedGroups:
    """The groups with their shaped rewards, and metrics."""

    groups: list[GroupCredit]
    metrics: dict[str, float]


def shape_rewards(groups: Sequence[GroupCredit], shaping: RewardShaping) -> ShapedGroups:
    """Applies the steps of `shaping`; the metrics count the penalised and clipped rewards."""
    shaped, metrics = list(groups), {}
    if shaping.user_function is not None:
        shaped = _with_rewards(shaped, np.array(shaping.user_function(shaped), np.float64))
    if shaping.overlong_buffer:
        shaped = _penalise_overlong(shaped, shaping, metrics)
    if shaping.grouping != "none":
        shaped = _normalise_rewards(shaped, shaping.grouping, shaping.normalize_std)
    if shaping.clip is not None:
        rewards_N = _rewards(shaped)
        metrics["reward/clipped"] = _mean(np.abs(rewards_N) > shaping.clip)
        clipped_N, baselines_N = (
            np.clip(values_N, -shaping.clip, shaping.clip)
            for values_N in (rewards_N, _baselines(shaped))
        )
        shaped = _with_rewards(shaped, clipped_N, baselines_N=baselines_N)
    return ShapedGroups(shaped, metrics)


def _penalise_overlong(
    groups: list[GroupCredit], shaping: RewardShaping, metrics: dict[str, float]
) -> list[GroupCredit]:
    lengths_N = np.array([e.response_length for e in episodes_of(groups)], np.float64)
    begins = shaping.max_response_length - shaping.overlong_buffer
    share_N = np.clip((lengths_N - begins) / shaping.overlong_buffer, 0, 1)
    metrics["reward/overlong"] = _mean(share_N > 0)
    metrics["reward/overlong_penalty"] = _mean(share_N * shaping.overlong_factor)
    return _with_rewards(groups, _rewards(groups) - shaping.overlong_factor * share_N)


def _normalise_rewards(
    groups: list[GroupCredit], grouping: RewardGrouping, normalize_std: bool
) -> list[GroupCredit]:
    if grouping == "group":
        sets_N = compare_scores(groups).sets_N
    else:
        numbers: dict[str, int] = {}
        names = [e.tag if grouping == "tag" else "" for e in episodes_of(groups)]
        sets_N = np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)
    compared = Comparison(_rewards(groups), sets_N)
    scales_N = np.ones(len(compared.values_N))
    if normalize_std:
        scales_N = np.where(compared.are_equal_N, 1.0, 1 / (compared.stds_N + EPSILON))
    # ReMax compares with the greedy reward, which must be on the same scale.
    baselines_N = (_baselines(groups) - compared.means_N) * scales_N
    return _with_rewards(groups, relative(compared, normalize_std), scales_N, baselines_N)


def _rewards(groups: list[GroupCredit]) -> NDArray[np.float64]:
    return np.array([episode.reward for episode in episodes_of(groups)], np.float64)


def _baselines(groups: list[GroupCredit]) -> NDArray[np.float64]:
    """Returns the greedy baselines, with 0 for None; `_with_rewards` keeps None."""
    return np.array([episode.baseline or 0.0 for episode in episodes_of(groups)], np.float64)


def _with_rewards(
    groups: list[GroupCredit],
    rewards_N: NDArray[np.float64],
    scales_N: NDArray[np.float64] | None = None,
    baselines_N: NDArray[np.float64] | None = None,
) -> list[GroupCredit]:
    """Returns the groups with these rewards, their turn rewards multiplied by `scales_N`. Arrays
    have one number for each episode, in the order of the groups."""
    baselines_N = _baselines(groups) if baselines_N is None else baselines_N
    scales_N = np.ones(len(rewards_N)) if scales_N is None else scales_N
    numbers = zip(rewards_N.tolist(), scales_N.tolist(), baselines_N.tolist(), strict=True)
    shaped: list[GroupCredit] = []
    for group in groups:
        episodes: list[EpisodeCredit] = []
        for episode in group:
            reward, scale, baseline = next(numbers)
            changed = episode.with_reward(reward, episode.turn_rewards_T * scale)
            greedy = None if episode.baseline is None else baseline
            episodes.append(replace(changed, baseline=greedy))
        shaped.append(tuple(episodes))
    return shaped


def _mean(values_N: NDArray[np.generic]) -> float:
    return float(values_N.astype(np.float64).mean()) if len(values_N) else 0.0
