"""The computation of advantages from judged episodes, in the order of its stages.

    credits -> shaping -> estimator -> (returns for the critic) -> whitening -> clipping

    estimate(credits, EstimatorSettings("gae")).advantages["e1"]   one array per turn

Not covered: where penalties, values and greedy baselines come from (the training loop puts them
into the credits), and the coefficient of the KL (kl_controller.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np

from ajet.core.advantage import gae as critic_based
from ajet.core.advantage.agent_views import agent_views, merge_views
from ajet.core.advantage.credit import AdvantageOptions, Advantages, GroupCredit
from ajet.core.advantage.gae import gae
from ajet.core.advantage.gdpo import gdpo
from ajet.core.advantage.gigpo import gigpo
from ajet.core.advantage.grpo import grpo
from ajet.core.advantage.metrics import advantage_metrics
from ajet.core.advantage.opo import opo
from ajet.core.advantage.own import OwnEstimator, OwnShaping
from ajet.core.advantage.pass_at_k import pass_at_k
from ajet.core.advantage.reinforce import reinforce
from ajet.core.advantage.reinforce_plus_plus_baseline import reinforce_plus_plus_baseline
from ajet.core.advantage.remax import remax
from ajet.core.advantage.rloo import rloo
from ajet.core.advantage.shaping import RewardShaping, shape_rewards
from ajet.core.advantage.step_reinforce import step_reinforce
from ajet.core.advantage.whiten import whiten
from ajet.core.config import AjetConfig
from ajet.core.config.section import same_named
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError


class Estimator(Protocol):
    """Computes raw advantages, before whitening and clipping, as a pure function of a batch's
    groups.
    """

    def __call__(self, groups: Sequence[GroupCredit], options: AdvantageOptions) -> Advantages: ...


ESTIMATORS: dict[str, Estimator] = {
    "grpo": grpo,
    "starpo": grpo,
    "rloo": rloo,
    "reinforce": reinforce,
    "reinforce_plus_plus": reinforce,  # whitened below
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "remax": remax,
    "opo": opo,
    "gae": gae,
    "gigpo": gigpo,
    "step_reinforce": step_reinforce,
    "gdpo": gdpo,
    "pass_at_k": pass_at_k,
}
"""The keys are the names for ``trainer_common.algorithm.adv_estimator``."""

OF_WHOLE_EPISODES = frozenset({"gdpo", "remax"})
"""Estimators that compare what an agent alone has not: named rewards, or a greedy episode's."""
WHITENED = frozenset({"gae", "gdpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"})
"""Estimators whose definition includes whitening; `whiten_advantages` overrides it if not null."""


@dataclass(frozen=True, slots=True)
class EstimatorSettings:
    """Holds what `trainer_common.algorithm` says about advantages."""

    name: str = "grpo"
    options: AdvantageOptions = field(default_factory=AdvantageOptions)
    shaping: RewardShaping = field(default_factory=RewardShaping)
    whiten: bool | None = None  # None: as the estimator is defined
    own: OwnEstimator | None = None  # the user's, which `name` names
    clip: float | None = None

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        """Reads the settings from the config."""
        algorithm = config.ajet.trainer_common.algorithm
        return cls(
            name=algorithm.adv_estimator,
            options=AdvantageOptions(**same_named(AdvantageOptions, algorithm)),
            shaping=RewardShaping(
                overlong_buffer=algorithm.overlong.buffer_len,
                overlong_factor=algorithm.overlong.penalty_factor,
                max_response_length=config.ajet.data.max_response_length,
                grouping=algorithm.reward_normalization.grouping,
                normalize_std=algorithm.reward_normalization.method == "mean_std",
                clip=algorithm.reward_clip,
                own=OwnShaping.of(config),
            ),
            whiten=algorithm.whiten_advantages,
            own=OwnEstimator.of(config),
            clip=algorithm.advantage_clip,
        )

    @property
    def whitens(self) -> bool:
        return self.name in WHITENED if self.whiten is None else self.whiten


@dataclass(frozen=True, slots=True)
class AdvantageEstimate:
    """Holds the advantages and returns of a step, with the metrics of their computation."""

    advantages: Advantages
    returns: Advantages | None  # the critic's targets; only gae gives them
    metrics: dict[str, float]


def estimate(credits: Sequence[GroupCredit], settings: EstimatorSettings) -> AdvantageEstimate:
    """Computes the advantages of all groups of a step.

    It needs them all at once, because whitening and batch baselines are computed over the whole
    batch. Agents with rewards of their own are computed apart (agent_views.py); the names of their
    metrics end with the agent's.
    """
    views = agent_views(credits)
    if not views:
        return _estimate(credits, settings)
    if settings.name in OF_WHOLE_EPISODES:
        raise ConfigError(
            f"ajet.trainer_common.algorithm.adv_estimator={settings.name}: it compares rewards of "
            "whole episodes, and agents of these have rewards of their own (agent_rewards); take "
            "grpo, for example",
            code=Code.KEYS_CONFLICT,
        )
    found = {agent: _estimate(view, settings) for agent, view in views.items()}
    returns = {agent: each.returns for agent, each in found.items() if each.returns is not None}
    return AdvantageEstimate(
        merge_views(credits, {agent: each.advantages for agent, each in found.items()}),
        merge_views(credits, returns) if returns else None,
        {f"{n}/{agent}": v for agent, each in found.items() for n, v in each.metrics.items()},
    )


def _estimate(credits: Sequence[GroupCredit], settings: EstimatorSettings) -> AdvantageEstimate:
    shaped = shape_rewards(credits, settings.shaping)
    estimator = settings.own or ESTIMATORS[settings.name]
    raw = estimator(shaped.groups, settings.options)
    returns = critic_based.returns(shaped.groups, raw) if settings.name == "gae" else None
    whitened = whiten(raw) if settings.whitens else raw
    advantages, metrics = _clip_advantages(whitened, settings.clip)
    metrics |= shaped.metrics | advantage_metrics(settings.name, shaped.groups, advantages)
    return AdvantageEstimate(advantages, returns, metrics)


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
