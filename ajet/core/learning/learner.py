"""Training of one step, from judged groups to changed weights: `make_batch` evaluates the models
once, before anything changes; `update` trains the critic, then the policy, which is not updated
while the critic warms up. A batch without a valid episode changes no weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NotRequired, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeInt
from torch import Tensor, enable_grad, nn
from typing_extensions import TypedDict

from ajet.core.advantage import EstimatorSettings, estimate
from ajet.core.advantage.credit import Advantages, GroupCredit
from ajet.core.advantage.kl_controller import FixedKLController
from ajet.core.advantage.kl_in_reward import penalise_kl
from ajet.core.config import AjetConfig
from ajet.core.errors import CheckpointError, DataError
from ajet.core.errors.codes import Code
from ajet.core.inference.grammar import Grammars
from ajet.core.learning.credit import credit_of, estimator_settings
from ajet.core.learning.preference import Preference
from ajet.core.learning.teacher import Teacher
from ajet.core.rollout.batch import without_truncated
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.trajectory.samples import by_turn, to_samples, with_advantages
from ajet.core.trajectory.trained_tokens import TrainedTokens
from ajet.core.trajectory.trajectory import Group
from ajet.core.update.critic import Critic
from ajet.core.update.optimizer import ModelState
from ajet.core.update.policy import Policy

Values = list[NDArray[np.float32]]
"""The critic's values, one array for each sample."""


class Counters(TypedDict):
    """The steps that an optimizer has made, and those that it skipped."""

    num_steps: NonNegativeInt
    num_skipped: NonNegativeInt


class LearnerState(TypedDict):
    """The models' part of a checkpoint's state.json."""

    policy: Counters
    critic: NotRequired[Counters]
    kl: NotRequired[dict[str, float]]


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """The settings of a step's training; the estimator is gae where there is a critic."""

    estimator: EstimatorSettings
    kl_in_reward: bool = False
    critic_warmup_steps: int = 0

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        trainer = config.ajet.trainer_common
        return cls(
            estimator=estimator_settings(config),
            kl_in_reward=trainer.algorithm.use_kl_in_reward,
            critic_warmup_steps=trainer.critic.warmup_steps,
        )


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """What one step trains on: the policy's samples, and the critic's returns with its values
    before the update. `tokens`, for the record, has the reference's log-probabilities; `update`
    adds what it computes. `adapters` has the parts of several adapters (adapter_learners.py)."""

    advantages: Advantages
    samples: list[TrainingSample]
    returns: Values | None
    values: Values | None
    metrics: dict[str, float]
    tokens: TrainedTokens
    adapters: Mapping[str, TrainBatch] = field(default_factory=dict)


class Learner:
    """Trains the policy and, where there is one, the critic; a checkpoint contains its state."""

    state_type = LearnerState

    def __init__(
        self,
        policy: Policy,
        critic: Critic | None,
        kl: FixedKLController,
        settings: LearnerSettings,
        teacher: Teacher | None = None,
        grammars: Grammars | None = None,
        preference: Preference | None = None,
    ) -> None:
        """`grammars` compiles the grammars that replies were sampled under."""
        self.policy = policy
        self.teacher = teacher
        self.critic = critic
        self.kl = kl
        self.settings = settings
        self.grammars = grammars
        self.preference = preference

    @property
    def models(self) -> dict[str, nn.Module]:
        """The models of several adapters: here there are none."""
        return {}

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights for an engine. All ranks must iterate together."""
        return self.policy.weights()

    def make_batch(self, groups: Sequence[Group]) -> TrainBatch:
        """Computes the rewards of the valid episodes, less the KL, and the critic's values; from
        these the advantages, and the samples that the update reads."""
        credits, tokens = [credit_of(group) for group in groups], TrainedTokens()
        values, logprobs, metrics = None, None, {}
        laid_out = to_samples(groups, grammars=self.grammars)
        if self.settings.kl_in_reward:
            credits, logprobs, metrics = self._subtract_kl(groups, laid_out, credits, tokens)
        if self.critic is not None:
            values = self.critic.values(laid_out)
            per_turn = by_turn(laid_out, values, groups)
            credits = [tuple(replace(e, values=per_turn[e.episode_id]) for e in g) for g in credits]
        result = estimate(credits, self.settings.estimator)
        samples = with_advantages(laid_out, result.advantages)
        if logprobs is not None:
            pairs = zip(samples, logprobs, strict=True)
            samples = [replace(sample, old_logprobs=old) for sample, old in pairs]
        if self.teacher is not None:
            samples = self.teacher.with_scores(samples, groups)
        if self.preference is not None:
            samples, found = self.preference.with_weights(samples, groups)
            metrics |= found
        returns = None
        if result.returns is not None:
            # Over the samples' tokens [T], as advantages are.
            returns = [each.advantages for each in with_advantages(laid_out, result.returns)]
        metrics |= result.metrics
        return TrainBatch(result.advantages, samples, returns, values, metrics, tokens)

    @enable_grad()  # files of users may have switched it off for the whole process
    def update(
        self, step: int, batch: TrainBatch, *, on_progress: Callable[[float], None] | None = None
    ) -> dict[str, float]:
        """Trains the critic and then the policy; returns their metrics with those of the batch."""
        metrics = dict(batch.metrics)
        if self.critic is not None:
            assert batch.returns is not None and batch.values is not None
            result = self.critic.update(batch.samples, batch.returns, batch.values)
            metrics |= {f"critic/{name}": value for name, value in result.items()}
        if self.critic is None or step > self.settings.critic_warmup_steps:
            result = self.policy.update(batch.samples, on_progress=on_progress, tokens=batch.tokens)
            metrics |= {f"update/{name}": value for name, value in result.items()}
        return metrics

    def cross_entropy(self, groups: Sequence[Group]) -> float:
        """Returns the mean cross-entropy of the given tokens of complete episodes, in nats."""
        complete = [without_truncated(group) for group in groups]
        samples = to_samples(complete, grammars=self.grammars)
        samples = [sample for sample in samples if sample.carries("cross_entropy")]
        pairs = zip(samples, self.policy.score(samples), strict=True)
        logprobs = [score[sample.stream("cross_entropy") != 0] for sample, score in pairs]
        if not logprobs:
            raise DataError(
                "no held-out row could be scored: each failed, or is beyond a limit",
                code=Code.ROW_NOT_TRAINABLE,
            )
        return -float(np.concatenate(logprobs).mean(dtype=np.float64))

    def state_dict(self) -> ModelState:
        """Returns the tensors of all models, and the state of each by name."""
        tensors, counters = self.policy.state_dict()
        state: dict[str, Any] = {"policy": counters, "kl": self.kl.state_dict()}
        if self.critic is not None:
            critic_tensors, counters = self.critic.state_dict()
            tensors, state = tensors | critic_tensors, state | {"critic": counters}
        return ModelState(tensors, state)

    def template(self) -> dict[str, Tensor]:
        """Returns tensors with the names, shapes and shards of a checkpoint's; their content is
        arbitrary."""
        critic = {} if self.critic is None else self.critic.template()
        return self.policy.template() | critic

    def load_state_dict(self, tensors: Mapping[str, Tensor], state: LearnerState) -> None:
        """Restores all models from a checkpoint's tensors and state."""
        self.policy.load_state_dict(tensors, state["policy"])
        if kl_state := state.get("kl"):
            self.kl.load_state_dict(kl_state)
        if self.critic is None:
            return
        if "critic" not in state:
            raise CheckpointError(
                "the checkpoint has no critic, which adv_estimator gae needs: resume with the "
                "estimator that it was made with, or start from scratch with --no-resume",
                code=Code.CHECKPOINT_DIFFERS,
            )
        self.critic.load_state_dict(tensors, state["critic"])

    def _subtract_kl(
        self,
        groups: Sequence[Group],
        samples: Sequence[TrainingSample],
        credits: list[GroupCredit],
        tokens: TrainedTokens,
    ) -> tuple[list[GroupCredit], Values | None, dict[str, float]]:
        """Subtracts each token's KL, and returns the log-probabilities that it compares with the
        reference if they are the trainer's: the update needs them too. `tokens` gets the
        reference's log-probabilities."""
        is_trainers = self.policy.settings.old_logprobs == "trainer"
        scores = self.policy.score(samples) if is_trainers else None
        recorded = [sample.logprobs for sample in samples]
        policy_logprobs = by_turn(samples, recorded if scores is None else scores, groups)
        reference = by_turn(samples, self.policy.reference_scores(samples), groups)
        for episode_id, turns in reference.items():
            for index, logprobs in enumerate(turns):
                if len(logprobs):
                    tokens.row(episode_id, index, "reference_logprobs", len(logprobs))[:] = logprobs
        # This step's penalty uses the coefficient of the steps before; then its KL adapts it.
        coef = self.kl.coef
        penalised = penalise_kl(credits, policy_logprobs, reference, coef)
        num_episodes = sum(map(len, credits))
        if num_episodes:
            self.kl.update(penalised.kl, num_episodes)
        metrics = {"kl_in_reward/kl": penalised.kl, "kl_in_reward/coef": coef}
        return penalised.groups, scores, metrics
