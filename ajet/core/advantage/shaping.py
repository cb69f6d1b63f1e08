"""Reward shaping before the estimator: the user's own, over-long penalty, normalisation, clipping.

    reward R                        1.0        turn rewards   .2   .8
    - over-long penalty            -0.5        0.5            .2   .3
    normalised: (R - mean) / std    ...        scaled by 1/std; the last one less the mean
    clipped to +- clip              ...        the last one takes the difference

The order is ROLL's. Turn rewards keep adding up to the reward: a change of the whole reward goes to
the last trained turn. The greedy reward that remax compares with is normalised and clipped by the
same numbers.

The over-long penalty is DAPO's (Yu et al. 2025, arXiv 2503.14476, equation 13): 0 until `buffer`
tokens before the ceiling, then linear to `-factor` at it. The KL is not subtracted here, but from
each token (kl_in_reward.py).
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
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError

RewardGrouping = Literal["none", "group", "tag", "batch"]


@dataclass(frozen=True, slots=True)
class RewardShaping:
    """Holds the settings of reward shaping; the defaults leave rewards as they are."""

    overlong_buffer: int = 0  # tokens; 0 is off
    overlong_factor: float = 1.0
    max_response_length: int = 15000
    grouping: RewardGrouping = "none"
    normalize_std: bool = False
    clip: float | None = None
    own: Callable[[Sequence[GroupCredit]], list[float]] | None = None  # the user's, before all else

    def __post_init__(self) -> None:
        if self.overlong_buffer > self.max_response_length:
            raise ConfigError(
                f"ajet.trainer_common.algorithm.overlong.buffer_len: {self.overlong_buffer} is "
                f"more than ajet.data.max_response_length ({self.max_response_length})",
                code=Code.KEYS_CONFLICT,
            )


@dataclass(frozen=True, slots=True)
class ShapedGroups:
    """Holds the groups with their shaped rewards, and the metrics of the shaping."""

    groups: list[GroupCredit]
    metrics: dict[str, float]


def shape_rewards(groups: Sequence[GroupCredit], shaping: RewardShaping) -> ShapedGroups:
    """Applies over-long penalty, normalisation and clipping; counts the rewards that are penalised
    or clipped.
    """
    shaped, metrics = list(groups), {}
    if shaping.own is not None:
        shaped = _with_rewards(shaped, np.array(shaping.own(shaped), np.float64))
    if shaping.overlong_buffer:
        shaped = _penalise_overlong(shaped, shaping, metrics)
    if shaping.grouping != "none":
        shaped = _normalise_rewards(shaped, shaping.grouping, shaping.normalize_std)
    if shaping.clip is not None:
        shaped = _clip_rewards(shaped, shaping.clip, metrics)
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
    compared = Comparison(_rewards(groups), _sets(groups, grouping))
    scales_N = np.ones(len(compared.values_N))
    if normalize_std:
        scales_N = np.where(compared.are_equal_N, 1.0, 1 / (compared.stds_N + EPSILON))
    baselines_N = (_baselines(groups) - compared.means_N) * scales_N
    return _with_rewards(groups, relative(compared, normalize_std), scales_N, baselines_N)


def _sets(groups: list[GroupCredit], grouping: RewardGrouping) -> NDArray[np.int64]:
    if grouping == "group":
        return compare_scores(groups).sets_N
    numbers: dict[str, int] = {}
    names = [e.tag if grouping == "tag" else "" for e in episodes_of(groups)]
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)


def _clip_rewards(
    groups: list[GroupCredit], clip: float, metrics: dict[str, float]
) -> list[GroupCredit]:
    rewards_N = _rewards(groups)
    metrics["reward/clipped"] = _mean(np.abs(rewards_N) > clip)
    cut_N = np.clip(rewards_N, -clip, clip)
    return _with_rewards(groups, cut_N, baselines_N=np.clip(_baselines(groups), -clip, clip))


def _rewards(groups: list[GroupCredit]) -> NDArray[np.float64]:
    return np.array([episode.reward for episode in episodes_of(groups)], np.float64)


def _baselines(groups: list[GroupCredit]) -> NDArray[np.float64]:
    """Returns the greedy baselines, with 0 for None; `_with_reward` keeps None as None."""
    return np.array([episode.baseline or 0.0 for episode in episodes_of(groups)], np.float64)


def _with_rewards(
    groups: list[GroupCredit],
    rewards_N: NDArray[np.float64],
    scales_N: NDArray[np.float64] | None = None,
    baselines_N: NDArray[np.float64] | None = None,
) -> list[GroupCredit]:
    baselines_N = _baselines(groups) if baselines_N is None else baselines_N
    scales_N = np.ones(len(rewards_N)) if scales_N is None else scales_N
    shaped = iter(
        [
            _with_reward(episode, *numbers)
            for episode, *numbers in zip(
                episodes_of(groups),
                rewards_N.tolist(),
                scales_N.tolist(),
                baselines_N.tolist(),
                strict=True,
            )
        ]
    )
    return [tuple(next(shaped) for _ in group) for group in groups]


def _with_reward(
    episode: EpisodeCredit, reward: float, scale: float, baseline: float
) -> EpisodeCredit:
    shaped = episode.with_reward(reward, episode.turn_rewards_T * scale)
    return replace(shaped, baseline=None if episode.baseline is None else baseline)


def _mean(values_N: NDArray[np.generic]) -> float:
    return float(values_N.astype(np.float64).mean()) if len(values_N) else 0.0
