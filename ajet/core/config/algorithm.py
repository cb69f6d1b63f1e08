"""Defines `ajet.trainer_common.algorithm`: from rewards to advantages to a loss."""

from typing import Literal, Self

from pydantic import Field, model_validator

from ajet.core.config.section import Section

Estimator = Literal[
    "grpo",
    "rloo",
    "reinforce",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "opo",
    "gae",
    "gigpo",
    "step_reinforce",
    "starpo",
]


class RewardNormalization(Section):
    """Configures how episodes' rewards are normalized before the estimator, with ROLL's
    settings."""

    grouping: Literal["none", "group", "tag", "batch"] = Field(
        default="none", description="Over which episodes; none leaves rewards as they are."
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


class DynamicSampling(Section):
    """Configures dynamic sampling (DAPO): groups in which all rewards are equal are left out, and
    others are rolled out instead."""

    enable: bool = Field(default=False, description="Fill every batch with groups that differ.")
    max_rounds: int = Field(
        default=4, ge=1, description="Rollouts of one step; then the batch stays smaller."
    )


class Overlong(Section):
    """Configures what happens to episodes that come near the limit of their tokens (DAPO)."""

    buffer_len: int = Field(
        default=0,
        ge=0,
        description="Tokens before data.max_response_length in which the penalty grows; 0 is off.",
    )
    penalty_factor: float = Field(default=1.0, ge=0, description="The penalty at the ceiling.")
    mask_truncated: bool = Field(
        default=False, description="Leave truncated episodes out of the update and the baseline."
    )


class AlgorithmConfig(Section):
    """Configures the way from rewards to a loss."""

    adv_estimator: Estimator = Field(
        default="grpo",
        description="How rewards become advantages: grpo, rloo, opo compare with the group; gigpo, "
        "step_reinforce credit steps; gae has a critic; remax a greedy episode.",
    )
    normalize_std: bool = Field(
        default=True, description="Divide advantages by the group's standard deviation."
    )
    gamma: float = Field(default=1.0, ge=0, le=1, description="Discount per token.")
    lam: float = Field(default=1.0, ge=0, le=1, description="GAE's lambda, per token.")
    step_reward_gamma: float = Field(
        default=1.0, ge=0, le=1, description="Discount per turn, of gigpo and step_reinforce."
    )
    step_baseline: Literal["others", "none"] = Field(
        default="others",
        description="What step_reinforce subtracts: the others' mean return at the same turn, or "
        "nothing.",
    )
    episode_reward_weight: float = Field(
        default=1.0, ge=0, description="Weight of gigpo's episode advantage."
    )
    step_reward_weight: float = Field(
        default=1.0, ge=0, description="Weight of gigpo's step advantage."
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
    policy_loss: Literal["ppo", "gspo", "cispo", "gpg", "topr", "sapo"] = Field(
        default="ppo", description="The loss of a token."
    )
    clip_low: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="The ratio is clipped below 1 - clip_low; 1 has no lower bound.",
    )
    clip_high: float = Field(
        default=0.28, ge=0, description="The ratio is clipped above 1 + clip_high."
    )
    dual_clip: float | None = Field(
        default=None, gt=1, description="Bound of the loss for negative advantages; null has none."
    )
    sapo_tau_pos: float = Field(default=1.0, gt=0, description="sapo: slope where A > 0.")
    sapo_tau_neg: float = Field(default=1.05, gt=0, description="sapo: slope where A < 0.")
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

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        correction = self.rollout_correction
        if correction.lower >= correction.upper:
            raise ValueError("rollout_correction: lower must be less than upper")
        return self


class CriticConfig(Section):
    """Configures the value model of adv_estimator gae: a copy of a model whose head gives one
    number."""

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
