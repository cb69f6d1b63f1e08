"""The computation of advantages from judged episodes, in the order of its stages.

    credits -> shaping -> estimator -> (returns for the critic) -> whitening -> clipping

The order is part of the definition: shaping changes what is compared, whitening what is clipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ajet.core.advantage.agent_views import agent_views, merge_views
from ajet.core.advantage.credit import AdvantageOptions, Advantages, GroupCredit
from ajet.core.advantage.estimator import Compute, Estimator
from ajet.core.advantage.gae import returns
from ajet.core.advantage.metrics import advantage_metrics
from ajet.core.advantage.registry import ESTIMATORS
from ajet.core.advantage.shaping import RewardShaping, shape_rewards
from ajet.core.errors import KeysConflict


@dataclass(frozen=True, slots=True)
class EstimatorSettings:
    """What `trainer_common.algorithm` says about advantages."""

    name: str = "grpo"
    options: AdvantageOptions = field(default_factory=AdvantageOptions)
    shaping: RewardShaping = field(default_factory=RewardShaping)
    whiten: bool | None = None  # None: as the estimator is defined
    user_function: Compute | None = None  # loaded from `name`
    clip: float | None = None

    @property
    def estimator(self) -> Estimator:
        return Estimator(self.user_function) if self.user_function else ESTIMATORS[self.name]

    @property
    def whitens(self) -> bool:
        return self.estimator.whitens if self.whiten is None else self.whiten


@dataclass(frozen=True, slots=True)
class AdvantageEstimate:
    """The advantages and returns of a step, with metrics."""

    advantages: Advantages
    returns: Advantages | None  # the critic's targets, where there is one
    metrics: dict[str, float]


def estimate(credits: Sequence[GroupCredit], settings: EstimatorSettings) -> AdvantageEstimate:
    """Computes the advantages of all groups of a step, at once: whitening and batch baselines are
    over the whole batch. Agents that earn separate rewards are computed separately
    (agent_views.py), and their metrics end with the agent's name."""
    views = agent_views(credits)
    if not views:
        return _estimate(credits, settings)
    if settings.estimator.compares_named_rewards or settings.estimator.needs_greedy_episode:
        raise KeysConflict(
            f"ajet.trainer_common.algorithm.adv_estimator={settings.name}: it compares rewards of "
            "whole episodes, but agents of these have separate rewards (agent_rewards); use grpo, "
            "for example"
        )
    by_agent = {agent: _estimate(view, settings) for agent, view in views.items()}
    targets = {a: result.returns for a, result in by_agent.items() if result.returns is not None}
    return AdvantageEstimate(
        merge_views(credits, {agent: result.advantages for agent, result in by_agent.items()}),
        merge_views(credits, targets) if targets else None,
        {f"{n}/{agent}": v for agent, r in by_agent.items() for n, v in r.metrics.items()},
    )


def _estimate(credits: Sequence[GroupCredit], settings: EstimatorSettings) -> AdvantageEstimate:
    shaped = shape_rewards(credits, settings.shaping)
    estimator = settings.estimator
    raw = estimator.compute(shaped.groups, settings.options)
    # The critic's targets come before whitening, which changes the unit of the advantages.
    targets = returns(shaped.groups, raw) if estimator.needs_critic else None
    whitened = whiten(raw) if settings.whitens else raw
    advantages, metrics = _clip_advantages(whitened, settings.clip)
    metrics |= shaped.metrics | advantage_metrics(estimator, shaped.groups, advantages)
    return AdvantageEstimate(advantages, targets, metrics)


def _clip_advantages(
    advantages: Advantages, clip: float | None
) -> tuple[Advantages, dict[str, float]]:
    if clip is None:
        return advantages, {}
    arrays = [array for turns in advantages.values() for array in turns]
    num_cut = sum(int((np.abs(array) > clip).sum()) for array in arrays)
    share = num_cut / max(sum(map(len, arrays)), 1)
    cut = {
        name: tuple(np.clip(array, -clip, clip) for array in turns)
        for name, turns in advantages.items()
    }
    return cut, {"advantage/clipped": share}


def whiten(advantages: Advantages) -> Advantages:
    """Returns (x - mean) / sqrt(var + 1e-8) over all tokens of the batch, so long episodes weigh
    more. As in verl the variance is divided by n - 1. Equal advantages, or a single one, become
    exactly 0."""
    arrays = [array for turns in advantages.values() for array in turns]
    flat = np.concatenate(arrays).astype(np.float64) if arrays else np.zeros(0)
    if not len(flat) or (flat == flat[0]).all():
        return {name: tuple(map(np.zeros_like, turns)) for name, turns in advantages.items()}
    mean, scale = flat.mean(), 1 / np.sqrt(flat.var(ddof=1) + 1e-8)
    return {
        name: tuple(((array - mean) * scale).astype(np.float32) for array in turns)
        for name, turns in advantages.items()
    }
