"""What one update reports: sums gathered over micro-batches, turned into floats once.

    loss pg_loss kl entropy      as in the objective: `loss` with the mini-batch's weights, averaged
                                 over mini-batches; the others are means over trained tokens
    clip_fraction_low/high       tokens whose ratio was cut (advantage below / above 0)
    logprob_diff_max/mean        |trainer - sampler|, over the first mini-batch, where the policy is
                                 still the one that sampled
    trained_tokens               all in the loss masks; `tree_tokens` is what the forward pass went
                                 through, `padded_tokens` what rectangles of the same rows hold

Means are over computed tokens: `skipped_samples` have no gradient and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.layouts.layout import Row
from ajet.core.update.optimizer import StepOutcome
from ajet.core.update.settings import UpdateSettings


@dataclass(frozen=True, slots=True)
class TokenValues:
    """The trained tokens ``[M]`` of one micro-batch, without gradient."""

    weight: Tensor
    loss: Tensor
    pg_loss: Tensor
    kl: Tensor
    entropy: Tensor
    ratio: Tensor
    log_ratio: Tensor
    advantage: Tensor

    def sums(self, settings: UpdateSettings) -> dict[str, float]:
        too_high = (self.advantage > 0) & (self.ratio > 1 + settings.clip_high)
        too_low = (self.advantage < 0) & (self.ratio < 1 - settings.clip_low)
        parts = {
            "loss": self.weight * self.loss,
            "pg_loss": self.pg_loss,
            "kl": self.kl,
            "entropy": self.entropy,
            "clip_fraction_low": too_low.float(),
            "clip_fraction_high": too_high.float(),
            "logprob_diff": self.log_ratio.abs(),
        }
        return dict(
            zip(parts, torch.stack([p.sum() for p in parts.values()]).tolist(), strict=True)
        )


@dataclass(slots=True)
class UpdateMetrics:
    """Filled in the course of one `Policy.update`."""

    samples: Sequence[TrainingSample]
    sums: dict[str, float] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    ratio_max: float = 0.0
    logprob_diff_max: float = 0.0
    num_values: int = 0
    num_first: int = 0
    num_rows: int = 0
    num_computed: int = 0
    num_padded: int = 0
    empty_mini_batches: int = 0
    steps: list[StepOutcome] = field(default_factory=list)

    def add(
        self, rows: Sequence[Row], computed: int, values: TokenValues, settings: UpdateSettings
    ) -> None:
        """One micro-batch."""
        sums = values.sums(settings)
        num_values = len(values.loss)
        self.sums = {key: self.sums.get(key, 0.0) + value for key, value in sums.items()}
        self.ratio_max = max(self.ratio_max, float(values.ratio.max()))
        self.num_values += num_values
        if not self.steps:
            self.first["sum"] = self.first.get("sum", 0.0) + sums["logprob_diff"]
            self.num_first += num_values
            self.logprob_diff_max = max(self.logprob_diff_max, float(values.log_ratio.abs().max()))
        self.num_rows += len(rows)
        self.num_computed += computed
        self.num_padded += len(rows) * max(map(len, rows))

    def result(self, seconds: float) -> dict[str, float]:
        per_token = 1.0 / max(self.num_values, 1)
        means = {key: value * per_token for key, value in self.sums.items() if key != "loss"}
        means.pop("logprob_diff", None)
        num_steps = max(len(self.steps), 1)
        stepped = [s for s in self.steps if s.stepped]
        return {
            "loss": self.sums.get("loss", 0.0) / num_steps,
            **means,
            "ratio_max": self.ratio_max,
            "logprob_diff_max": self.logprob_diff_max,
            "logprob_diff_mean": self.first.get("sum", 0.0) / max(self.num_first, 1),
            "grad_norm": sum(s.grad_norm for s in stepped) / max(len(stepped), 1),
            "lr": self.steps[-1].lr if self.steps else 0.0,
            "optimizer_steps": float(len(stepped)),
            "nonfinite_steps": float(len(self.steps) - len(stepped)),
            "empty_mini_batches": float(self.empty_mini_batches),
            "trained_tokens": float(sum(s.num_trained for s in self.samples)),
            "tree_tokens": float(self.num_computed),
            "padded_tokens": float(self.num_padded),
            "skipped_samples": float(len(self.samples) - self.num_rows),
            "groups": float(len({s.group_id for s in self.samples})),
            "groups_without_signal": float(self._groups_without_signal()),
            "seconds": seconds,
        }

    def _groups_without_signal(self) -> int:
        live = {s.group_id for s in self.samples if s.advantages[s.loss_mask].any()}
        return len({s.group_id for s in self.samples} - live)
