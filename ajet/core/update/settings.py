"""Settings of the update, built from the config tree, which has checked each value.

The names follow verl and TRL. `same_named` copies fields that have the same name in the config;
`from_config` adds the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from ajet.core.config import AjetConfig
from ajet.core.config.section import same_named
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.losses import LossSettings
from ajet.core.seeding import derive

KLType = Literal["low_var_kl", "low_var_kl+", "k1", "k2"]
LossAggMode = Literal[
    "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]
BatchLayout = Literal["auto", "padded", "packed", "tree"]
LRSchedule = Literal["constant", "linear", "cosine"]
CorrectionLevel = Literal["none", "token", "turn", "sequence"]
CorrectionMode = Literal["truncate", "reject"]
RatioCombination = Literal["product", "geometric_mean"]
OldLogprobs = Literal["sampler", "trainer"]
Recomputation = bool | Literal["auto"]


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """Settings of low-rank adapters; `targets` are module names for peft. `adapters` are the names
    of several that learn separately (many_adapters.py); empty means a single one."""

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] | str = "all-linear"
    seed: int = 0  # seed of the adapters' initial weights
    adapters: tuple[str, ...] = ()

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self | None:
        """Returns None if all weights are trained."""
        lora = config.ajet.trainer_common.lora
        if not lora.rank:
            return None
        targets = lora.target_modules
        return cls(
            rank=lora.rank,
            alpha=lora.alpha,
            targets=targets if isinstance(targets, str) else tuple(targets),
            seed=config.ajet.seed,
            adapters=tuple(lora.adapters),
        )

    def for_adapter(self, name: str) -> Self:
        """Returns the settings of one of several adapters; its initial weights depend only on its
        name."""
        return replace(self, seed=derive(self.seed, "adapter", name), adapters=())


@dataclass(frozen=True, slots=True)
class CorrectionSettings:
    """The importance weighting between the sampler and the trainer (correction.py)."""

    level: CorrectionLevel = "none"
    mode: CorrectionMode = "truncate"
    upper: float = 2.0
    lower: float = 0.0  # lower bound, used by reject only
    combine: RatioCombination = "product"  # of the ratios of a turn's or an episode's tokens
    normalize: bool = False  # divide the weights by their mean
    reject: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # measure to its bounds
    count_rejected: bool = True  # in the loss's means

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        """Without a `level` in the config, the level is token where tokens may be stale, else none.

        The weight trainer / sampler of a stale token lets the loss clip around the policy before
        this update, as it does without staleness, and not around the policy of some updates ago.
        With `old_logprobs: sampler` the loss's ratio contains that weight already."""
        algorithm = config.ajet.trainer_common.algorithm
        correction = algorithm.rollout_correction
        weighs_stale_tokens = config.max_staleness and algorithm.weighs_stale_tokens
        return cls(
            **same_named(cls, correction)
            | {
                "level": correction.level or ("token" if weighs_stale_tokens else "none"),
                "reject": correction.reject_bounds,
            }
        )

    @property
    def is_on(self) -> bool:
        return self.level != "none" or bool(self.reject)


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """Settings of AdamW; biases, norms and embeddings have no weight decay."""

    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip: float = 1.0  # limit on the global norm; 0 means no limit
    warmup_steps: int = 0  # optimizer steps of linear rise to `lr`
    lr_schedule: LRSchedule = "constant"  # after the warm-up
    total_steps: int = 0  # optimizer steps until the rate is `min_lr_ratio * lr`
    min_lr_ratio: float = 0.0

    def __post_init__(self) -> None:
        if self.lr_schedule != "constant" and self.total_steps <= self.warmup_steps:
            raise ConfigError(
                f"lr_schedule={self.lr_schedule} needs total_steps above warmup_steps "
                f"({self.warmup_steps}), got {self.total_steps}",
                code=Code.UPDATE_SETTING,
            )


@dataclass(frozen=True, slots=True)
class UpdateSettings(OptimizerSettings, LossSettings):
    """Settings of the policy's update and of all losses; the defaults are a plain GRPO on one small
    machine."""

    # Objective.
    clip_high: float = 0.2  # as in GRPO; the config's default is DAPO's
    policy_loss: str = "ppo"  # a name of losses/, or file.py->name of the user's loss
    off_policy_mask: float | None = None  # nats; negative episodes further away are masked
    temperature: float = 1.0  # the sampler's; the policy's logits are divided by it
    kl_loss_coef: float = 0.0  # 0 means no reference model, unless keep_reference
    keep_reference: bool = False  # for `Policy.reference_scores`
    kl_loss_type: KLType = "low_var_kl"
    kl_teacher_coef: float = 1.0  # for samples with a teacher's log-probabilities
    entropy_coef: float = 0.0  # an entropy bonus: the loss falls as entropy rises
    loss_agg_mode: LossAggMode = "token-mean"
    loss_scale_factor: float | None = None  # for seq-mean-token-sum-norm; None: the longest episode
    old_logprobs: OldLogprobs | None = None  # None: the trainer's if there is a correction
    correction: CorrectionSettings = field(default_factory=CorrectionSettings)

    # Batches.
    ppo_epochs: int = 1  # passes over a training step's samples
    mini_batch_num: int = 1  # optimizer steps of one pass
    max_tokens_per_micro_batch: int = 4096  # tokens computed at once (distinct ones, as a tree)
    batch_layout: BatchLayout = "auto"  # tree where the model family has a flat forward
    activation_checkpointing: Recomputation = False  # auto: by size, or by a GPU's free memory
    lora: LoraSettings | None = None
    routing_replay: bool = False  # compute with the experts of the samples' `routes`
    seed: int = 0  # of the tokens that clip_cov draws

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        trainer = config.ajet.trainer_common
        algorithm, optim = trainer.algorithm, trainer.optim
        settings = {
            "betas": (optim.betas[0], optim.betas[1]),
            "total_steps": optimizer_steps(config),
            "temperature": config.ajet.rollout.temperature,
            "kl_loss_coef": trainer.kl_loss_coef if trainer.use_kl_loss else 0.0,
            "keep_reference": algorithm.use_kl_in_reward or config.ajet.kind == "preference",
            "kl_teacher_coef": config.ajet.distillation.kl_coef,
            "loss_scale_factor": float(config.ajet.data.max_response_length),
            "correction": CorrectionSettings.from_config(config),
            "max_tokens_per_micro_batch": tokens_per_pass(config),
            "activation_checkpointing": trainer.fsdp_config.activation_checkpointing,
            "lora": LoraSettings.from_config(config),
            "routing_replay": config.ajet.rollout.routing_replay,
            "seed": config.ajet.seed,
        }
        return cls(**same_named(cls, optim, algorithm, trainer) | settings)

    @property
    def recomputes_old_logprobs(self) -> bool:
        """Tells whether the trainer computes its log-probabilities before the update."""
        return self.old_logprobs == "trainer" or self.correction.is_on

    @property
    def old_is_trainers(self) -> bool:
        """Tells whether a ratio's old policy is the trainer's before the update."""
        has_weights = self.correction.level != "none"
        return self.old_logprobs == "trainer" or (self.old_logprobs is None and has_weights)


@dataclass(frozen=True, slots=True)
class CriticSettings(OptimizerSettings):
    """Settings of the critic's update."""

    lr: float = 1e-5
    cliprange_value: float = 0.5  # a value moves at most this far from the one of the rollout
    ppo_epochs: int = 1
    mini_batch_num: int = 1
    max_tokens_per_micro_batch: int = 4096
    batch_layout: BatchLayout = "auto"
    activation_checkpointing: Recomputation = False

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        trainer = config.ajet.trainer_common
        critic, optim = trainer.critic, trainer.optim
        settings = {
            "betas": (optim.betas[0], optim.betas[1]),
            # `critic.warmup_steps` is not an optimizer's warm-up: the policy is not updated in
            # these steps (core/learning).
            "warmup_steps": 0,
            "max_tokens_per_micro_batch": tokens_per_pass(config),
            "batch_layout": trainer.batch_layout,
            "activation_checkpointing": trainer.fsdp_config.activation_checkpointing,
        }
        return cls(**same_named(cls, critic) | settings)


def optimizer_steps(config: AjetConfig) -> int:
    """Returns the optimizer steps of the whole run, or 0 if the config sets epochs, not steps."""
    trainer = config.ajet.trainer_common
    mini_batches = min(trainer.mini_batch_num, config.ajet.data.train_batch_size)
    return (trainer.total_training_steps or 0) * mini_batches * trainer.ppo_epochs


def tokens_per_pass(config: AjetConfig) -> int:
    """Returns the tokens of one forward pass over all ranks that share a sequence. A backbone's
    `max_token_len_per_gpu` is for each of these ranks."""
    limit = {
        "verl": config.verl.trainer.max_token_len_per_gpu,
        "trinity": config.trinity.trainer.max_token_len_per_gpu,
    }.get(config.ajet.backbone)
    trainer = config.ajet.trainer_common
    if limit is None:
        return trainer.max_tokens_per_micro_batch
    return limit * trainer.ulysses_sequence_parallel_size


KEPT_SHARE = 0.5
"""A pass keeps its activations if they take at most this share of the free memory: gradients,
moments and the logits of a slice of tokens may not be allocated yet."""


def kept_values(hidden: int, attention_width: int, kv_width: int, intermediate: int) -> int:
    """Returns the number of values that one layer with a gated MLP keeps for one token.

    After Korthikanti et al. 2022 (arXiv 2205.05198, section 4), for grouped queries and attention
    that keeps no score matrix: two norms' inputs and outputs (4 h), queries and attention's output
    (2 q), keys and values (2 kv), gate, up, their product and the activation (4 m)."""
    return 4 * hidden + 2 * attention_width + 2 * kv_width + 4 * intermediate


def is_kept(num_bytes: float, free_bytes: float) -> bool:
    """Tells whether a pass keeps these activations; if not, it keeps only each layer's input."""
    return num_bytes <= KEPT_SHARE * free_bytes
