"""Defines `ajet.trainer_common.algorithm`: from rewards to advantages to a loss."""

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ajet.core.advantage import AdvantageOptions, Estimator, estimator_names, find_estimator
from ajet.core.config.section import ImportPath, Section
from ajet.core.losses import LossSettings, PolicyLoss, find_loss, loss_names

if TYPE_CHECKING:  # a checker cannot follow names that are computed
    EstimatorName = str
    PolicyLossName = str
else:
    EstimatorName, PolicyLossName = Literal[*estimator_names()], Literal[*loss_names()]

Measure = Literal[
    "token_k1", "token_k2", "token_k3",
    "turn_sum_k1", "turn_sum_k2", "turn_sum_k3",
    "turn_mean_k1", "turn_mean_k2", "turn_mean_k3",
    "turn_max_k2", "turn_max_k3",
    "seq_sum_k1", "seq_sum_k2", "seq_sum_k3",
    "seq_mean_k1", "seq_mean_k2", "seq_mean_k3",
    "seq_max_k2", "seq_max_k3",
]  # fmt: skip
"""Measures of the distance between sampler and trainer (core/update/correction.py)."""


Bounds = Annotated[list[float], Field(min_length=2, max_length=2)]


class RewardNormalization(Section):
    """Configures how rewards are normalized before the estimator, with ROLL's settings."""

    grouping: Literal["none", "group", "tag", "batch"] = Field(
        default="none", description="Over which episodes; none leaves rewards unchanged."
    )
    method: Literal["mean", "mean_std"] = Field(
        default="mean", description="Subtract the mean; mean_std divides by the deviation too."
    )


class KLControl(Section):
    """Configures the KL that is subtracted from the reward (use_kl_in_reward)."""

    type: Literal["fixed", "adaptive"] = Field(
        default="fixed", description="adaptive moves the coefficient to keep the KL at target_kl."
    )
    kl_coef: float = Field(default=0.001, ge=0, description="Its coefficient at the start.")
    target_kl: float = Field(default=0.1, gt=0, description="KL of a token that adaptive aims at.")
    horizon: int = Field(
        default=10000, ge=1, description="Episodes in which it moves by a fifth at most."
    )


class RolloutCorrection(Section):
    """Configures importance weights between the sampler and the trainer."""

    level: Literal["none", "token", "turn", "sequence"] | None = Field(
        default=None,
        description="What one weight is for; null is none, or token where tokens may be stale "
        "(trinity.max_staleness) and old_logprobs is not sampler.",
    )
    mode: Literal["truncate", "reject"] = Field(
        default="truncate",
        description="A weight beyond the bounds is cut to them, or its tokens leave the loss.",
    )
    upper: float = Field(default=2.0, gt=0, description="Largest weight.")
    lower: float = Field(default=0.0, ge=0, description="Smallest weight; for reject.")
    combine: Literal["product", "geometric_mean"] = Field(
        default="product",
        description="How the ratios of a turn's or an episode's tokens become one weight.",
    )

    normalize: bool = Field(
        default=False, description="Divide the weights by their mean over the batch."
    )
    reject: dict[Measure, float | Bounds] = Field(
        default={},
        description="Distances between sampler and trainer, each with its bounds in nats, beyond "
        "which tokens are rejected, as seq_mean_k1: 0.01 or token_k1: [-0.5, 0.5].",
    )
    count_rejected: bool = Field(
        default=True,
        description="Tokens that reject rejects count in the loss's means; false takes them out of "
        "the loss altogether, with their KL.",
    )

    @property
    def reject_bounds(self) -> dict[str, tuple[float, float]]:
        """Returns the lower and the upper bound of each measure; k2 and k3 are never negative."""
        bounds: dict[str, tuple[float, float]] = {}
        for measure, bound in self.reject.items():
            low, high = bound if isinstance(bound, list) else (-bound, bound)
            bounds[measure] = low, high
        return bounds

    @model_validator(mode="after")
    def _bounds_can_be_met(self) -> Self:
        for measure, bound in self.reject.items():
            low, high = self.reject_bounds[measure]
            if not low < high or high <= 0:
                raise ValueError(f"reject.{measure}: give a number above 0, or [low, high]")
            if isinstance(bound, list) and not measure.endswith("k1"):
                raise ValueError(f"reject.{measure}: it is never negative; give its upper bound")
        return self


class DynamicSampling(Section):
    """Configures dynamic sampling (DAPO), which replaces groups in which all rewards are equal."""

    enable: bool = Field(default=False, description="Fill every batch with groups that differ.")
    max_rounds: int = Field(
        default=4, ge=1, description="Rollouts of one step; then the batch stays smaller."
    )


class Overlong(Section):
    """Configures what happens to episodes near the limit of their tokens (DAPO)."""

    buffer_len: int = Field(
        default=0,
        ge=0,
        description="Tokens before data.max_response_length in which the penalty grows; 0 is off.",
    )
    penalty_factor: float = Field(default=1.0, ge=0, description="The penalty at the ceiling.")
    mask_truncated: bool = Field(
        default=False,
        description="Leave episodes that a limit cut, or whose last reply one cut, out of the "
        "update and the baseline.",
    )


def _loaded_later(*arguments: Any) -> Any:
    raise AssertionError("a function of the user's is loaded where it is used")


OWN_ESTIMATOR = Estimator(_loaded_later, reads=tuple(f.name for f in fields(AdvantageOptions)))
OWN_LOSS = PolicyLoss(_loaded_later, settings=LossSettings)


class AlgorithmConfig(Section, AdvantageOptions, LossSettings):  # pyright: ignore[reportGeneralTypeIssues]
    """Configures the way from rewards to a loss.

    The keys of single estimators and losses are declared with them: pydantic adopts the fields of
    the dataclasses `AdvantageOptions` and `LossSettings`.
    """

    adv_estimator: EstimatorName | ImportPath = Field(
        default="grpo",
        description="How rewards become advantages: grpo, rloo, opo compare with the group; gigpo, "
        "step_reinforce credit steps; gae has a critic; remax a greedy episode; file.py->function "
        "is your own.",
    )
    reward_shaping: ImportPath | None = Field(
        default=None,
        description="file.py->function of your own, from a batch's episodes to their rewards, "
        "before all that follows.",
    )
    reward_normalization: RewardNormalization = Field(
        default=RewardNormalization(), description="Rewards before the estimator."
    )
    reward_clip: float | None = Field(
        default=None, gt=0, description="Rewards are cut to this size; null cuts none."
    )
    advantage_clip: float | None = Field(
        default=None, gt=0, description="Advantages are cut to this size; null cuts none."
    )
    whiten_advantages: bool | None = Field(
        default=None,
        description="Mean 0 and deviation 1 over the batch's tokens; null: where the estimator is "
        "defined so (gae, reinforce_plus_plus and its baseline form).",
    )
    policy_loss: PolicyLossName | ImportPath = Field(
        default="ppo",
        description="The loss of a token: a name of docs/algorithms.md, or file.py->loss.",
    )
    off_policy_mask: float | None = Field(
        default=None,
        gt=0,
        description="Episodes with A < 0 from which the policy is further away than this (nats a "
        "token, of the sampler's log-probabilities over its own) have no policy loss; null: none.",
    )
    loss_agg_mode: Literal[
        "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
    ] = Field(default="token-mean", description="How token losses are averaged; seq is an episode.")
    entropy_coef: float = Field(default=0.0, ge=0, description="Weight of the entropy bonus.")
    use_kl_in_reward: bool = Field(
        default=False, description="Subtract the KL to the starting model from the reward."
    )
    kl_ctrl: KLControl = Field(default=KLControl(), description="That KL's coefficient.")
    old_logprobs: Literal["sampler", "trainer"] | None = Field(
        default=None,
        description="The old policy of a ratio, and that of the KL in the reward: the "
        "log-probabilities that the sampler recorded, or the trainer's own before the update; null "
        "is sampler, and for the ratio trainer where rollout_correction has weights.",
    )
    rollout_correction: RolloutCorrection = Field(
        default=RolloutCorrection(), description="Importance weights between sampler and trainer."
    )
    dynamic_sampling: DynamicSampling = Field(
        default=DynamicSampling(), description="Replacement of groups without signal."
    )
    overlong: Overlong = Field(default=Overlong(), description="Episodes that get too long.")

    @property
    def weighs_stale_tokens(self) -> bool:
        """Tells whether stale tokens get weights where `rollout_correction.level` is null."""
        # Not where the loss's ratio is already policy over sampler: it contains these weights.
        return self.old_logprobs != "sampler" and not self.loss.weighs_by_sampler

    @property
    def estimator(self) -> Estimator:
        """Returns the entry of `adv_estimator`; the user's own may read all options."""
        return find_estimator(self.adv_estimator) or OWN_ESTIMATOR

    @property
    def loss(self) -> PolicyLoss:
        """Returns the entry of `policy_loss`; the user's own may read all settings."""
        return find_loss(self.policy_loss) or OWN_LOSS

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        correction = self.rollout_correction
        if correction.lower >= correction.upper:
            raise ValueError("rollout_correction: lower must be less than upper")
        return self


class CriticConfig(Section):
    """Configures the value model of adv_estimator gae: a model whose head gives one number."""

    path: str | None = Field(
        default=None,
        description="The model it starts from; null is ajet.model.path.",
    )
    lr: float = Field(default=1e-5, ge=0, description="Learning rate.")
    warmup_steps: int = Field(
        default=0, ge=0, description="Training steps in which the critic learns alone."
    )
    cliprange_value: float = Field(
        default=0.5, gt=0, description="A value moves at most this far from the one of the rollout."
    )
    ppo_epochs: int = Field(default=1, ge=1, description="Passes over a step's samples.")
    mini_batch_num: int = Field(default=1, ge=1, description="Optimizer steps of one pass.")
    grad_clip: float = Field(
        default=1.0, gt=0, description="The gradient's norm is clipped to this."
    )
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's weight decay.")
