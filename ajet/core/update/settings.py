"""What the update can be told. Built from the config tree; checked here once.

The names follow the field (verl, TRL). Not covered: how many tokens an engine may sample, and when
checkpoints are written: those belong to the rollout and to the backbone.
"""

from dataclasses import dataclass
from typing import Literal

from ajet.core.errors import ConfigError

KLType = Literal["low_var_kl", "k1", "k2"]
LossAggMode = Literal[
    "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]
BatchLayout = Literal["auto", "padded", "packed", "tree"]
LRSchedule = Literal["constant", "cosine"]

CHOICES: dict[str, tuple[str, ...]] = {
    "kl_loss_type": ("low_var_kl", "k1", "k2"),
    "loss_agg_mode": (
        "token-mean",
        "seq-mean-token-sum",
        "seq-mean-token-mean",
        "seq-mean-token-sum-norm",
    ),
    "batch_layout": ("auto", "padded", "packed", "tree"),
    "lr_schedule": ("constant", "cosine"),
}


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """Train low-rank adapters in place of the weights. `targets` are module names for peft."""

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] | str = "all-linear"
    seed: int = 0  # of the adapters' first weights


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """One update of the policy. Every default is a plain GRPO on one small machine."""

    # Optimizer: AdamW; weight decay spares biases, norms and embeddings.
    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip: float = 1.0  # limit on the global norm; 0 means no limit
    warmup_steps: int = 0  # optimizer steps of linear rise to `lr`
    lr_schedule: LRSchedule = "constant"  # after the warm-up
    total_steps: int = 0  # optimizer steps until the cosine reaches `min_lr_ratio * lr`
    min_lr_ratio: float = 0.0

    # Objective.
    clip_low: float = 0.2  # ratio is clipped to [1 - clip_low, 1 + clip_high]
    clip_high: float = 0.2
    dual_clip: float | None = None  # for negative advantages: loss at most -A * dual_clip
    temperature: float = 1.0  # of the sampler: the policy's logits are divided by it
    kl_loss_coef: float = 0.0  # 0 means no reference model
    kl_loss_type: KLType = "low_var_kl"
    entropy_coef: float = 0.0  # a bonus: the loss falls as entropy rises
    loss_agg_mode: LossAggMode = "token-mean"
    loss_scale_factor: float | None = None  # of seq-mean-token-sum-norm; None: longest episode

    # Batches.
    mini_batch_num: int = 1  # optimizer steps for each training step
    max_tokens_per_micro_batch: int = 4096  # tokens computed at once (distinct ones, as a tree)
    batch_layout: BatchLayout = "auto"  # tree where the model family has a flat forward
    lora: LoraSettings | None = None

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r}: choose one of {', '.join(allowed)}"
                )
        for name in ("mini_batch_num", "max_tokens_per_micro_batch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: must be at least 1")
        for name in ("lr", "weight_decay", "grad_clip", "clip_low", "clip_high", "kl_loss_coef"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name}={getattr(self, name)}: must not be negative")
        if not self.temperature > 0:
            raise ConfigError(
                f"temperature={self.temperature}: training needs a sampling temperature above 0"
            )
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise ConfigError(f"dual_clip={self.dual_clip}: must be above 1")
        if self.lr_schedule == "cosine" and self.total_steps <= self.warmup_steps:
            raise ConfigError(
                f"lr_schedule=cosine needs total_steps above warmup_steps ({self.warmup_steps}), "
                f"got {self.total_steps}"
            )
