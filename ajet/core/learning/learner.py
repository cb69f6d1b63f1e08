"""From judged groups to changed weights: the part of a step that no episode takes part in.

    groups -> credit ────────> estimate ─────────> samples ─> update
               rewards,         advantages, and              critic, then policy
               KL and values    returns for the critic

`credit` asks the models once, before anything changes: the critic for the value before each trained
token (gae), the reference for the KL that is taken off the reward. That KL is against the
log-probabilities that the sampler recorded. While the critic warms up, the policy waits. Groups
without a valid member are empty here; a batch without any leaves all weights as they are.

Not covered: where groups come from and which of them count (rollout/batch.py); publishing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ajet.core.advantage import EstimatorSettings
from ajet.core.advantage import estimate as estimated
from ajet.core.advantage.credit import Advantages, GroupCredit, credit_of
from ajet.core.advantage.kl_controller import KLController
from ajet.core.advantage.kl_in_reward import penalise_kl
from ajet.core.config import AjetConfig
from ajet.core.errors import CheckpointError
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.trajectory.samples import by_turn, to_samples
from ajet.core.trajectory.trajectory import Group
from ajet.core.update.critic import Critic
from ajet.core.update.policy import Policy, PolicyState

Values = list[NDArray[np.float32]]
"""The critic's: one array for each sample."""


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """`estimator` is gae where there is a critic."""

    estimator: EstimatorSettings
    kl_in_reward: bool = False
    critic_warmup_steps: int = 0

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        """What the config says of a step between its rollout and its update."""
        trainer = config.ajet.trainer_common
        return cls(
            estimator=EstimatorSettings.from_config(config),
            kl_in_reward=trainer.algorithm.use_kl_in_reward,
            critic_warmup_steps=trainer.critic.warmup_steps,
        )


@dataclass(frozen=True, slots=True)
class ScoredGroups:
    """The groups of a step as rewards, and what the models computed for them: `values` are the
    critic's."""

    groups: Sequence[Group]
    credits: list[GroupCredit]
    values: Values | None
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """What one step trains on: the policy's samples, and the returns that the critic learns."""

    advantages: Advantages
    samples: list[TrainingSample]
    returns: Values | None
    values: Values | None
    metrics: dict[str, float]


class Learner:
    """The policy with all that learns beside it; a checkpoint keeps its state."""

    def __init__(
        self,
        policy: Policy,
        critic: Critic | None,
        kl: KLController,
        settings: LearnerSettings,
    ) -> None:
        self.policy = policy
        self.critic = critic
        self.kl = kl
        self.settings = settings

    def score(self, groups: Sequence[Group]) -> ScoredGroups:
        """Rewards of the valid episodes, less the KL, with the critic's values."""
        credits = [credit_of(group) for group in groups]
        if self.critic is None and not self.settings.kl_in_reward:
            return ScoredGroups(groups, credits, None, {})
        samples = to_samples(groups, _zeros(credits))
        credits, metrics = self._less_kl(groups, samples, credits)
        if self.critic is None:
            return ScoredGroups(groups, credits, None, metrics)
        values = self.critic.values(samples)
        per_turn = by_turn(samples, values, groups)
        valued = [tuple(replace(e, values=per_turn[e.episode_id]) for e in g) for g in credits]
        return ScoredGroups(groups, valued, values, metrics)

    def make_batch(self, scored: ScoredGroups) -> TrainBatch:
        """Advantages and what the update reads."""
        found = estimated(scored.credits, self.settings.estimator)
        samples = to_samples(scored.groups, found.advantages)
        returns = None
        if found.returns is not None:
            returns = [each.advantages for each in to_samples(scored.groups, found.returns)]
        metrics = scored.metrics | found.metrics
        return TrainBatch(found.advantages, samples, returns, scored.values, metrics)

    def update(
        self,
        step: int,
        batch: TrainBatch,
        *,
        on_progress: Callable[[float], None] | None = None,
    ) -> dict[str, float]:
        """The critic's optimizer steps, then the policy's; both with the lesson's own metrics."""
        metrics = dict(batch.metrics)
        if self.critic is not None:
            assert batch.returns is not None and batch.values is not None
            found = self.critic.update(batch.samples, batch.returns, batch.values)
            metrics |= {f"critic/{name}": value for name, value in found.items()}
        if self.critic is None or step > self.settings.critic_warmup_steps:
            found = self.policy.update(batch.samples, on_progress=on_progress)
            metrics |= {f"update/{name}": value for name, value in found.items()}
        return metrics

    def state_dict(self) -> PolicyState:
        """Tensors of all models, and each one's own state by name."""
        tensors, counters = self.policy.state_dict()
        state: dict[str, Any] = {"policy": counters, "kl": self.kl.state_dict()}
        if self.critic is not None:
            own, counters = self.critic.state_dict()
            tensors, state = tensors | own, state | {"critic": counters}
        return PolicyState(tensors, state)

    def template(self) -> dict[str, Tensor]:
        """Of the names, shapes and shards that a checkpoint's tensors have, of any content."""
        critic = {} if self.critic is None else self.critic.template()
        return self.policy.template() | critic

    def load_state_dict(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        self.policy.load_state_dict(tensors, state["policy"])
        if kept := state.get("kl"):
            self.kl.load_state_dict(kept)
        if self.critic is None:
            return
        if "critic" not in state:
            raise CheckpointError(
                "the checkpoint has no critic, which adv_estimator gae needs: go on with the "
                "estimator that it was made with, or start anew with --no-resume"
            )
        self.critic.load_state_dict(tensors, state["critic"])

    def _less_kl(
        self,
        groups: Sequence[Group],
        samples: Sequence[TrainingSample],
        credits: list[GroupCredit],
    ) -> tuple[list[GroupCredit], dict[str, float]]:
        """Each token's KL is taken off with the present coefficient, which then moves."""
        if not self.settings.kl_in_reward:
            return credits, {}
        sampled = by_turn(samples, [sample.logprobs for sample in samples], groups)
        reference = by_turn(samples, self.policy.reference_scores(samples), groups)
        coef = self.kl.coef
        found = penalise_kl(credits, sampled, reference, coef)
        num_episodes = sum(map(len, credits))
        if num_episodes:
            self.kl.update(found.kl, num_episodes)
        return found.groups, {"kl_in_reward/kl": found.kl, "kl_in_reward/coef": coef}


def _zeros(credits: Sequence[GroupCredit]) -> Advantages:
    """In the shape of advantages: for samples that are only scored."""
    episodes = (episode for group in credits for episode in group)
    return {e.episode_id: e.spread(np.zeros(len(e.lengths_T))) for e in episodes}
