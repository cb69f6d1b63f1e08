"""Metrics of one update of the critic, under `critic/` in a step's metrics.

    loss                         of a mini-batch's tokens, averaged over the optimizer steps
    clip_fraction                tokens that the clip left without gradient
    value_mean return_mean       means over the trained tokens, before the update
    explained_variance           1 - var(return - value) / var(return), of the values before the
                                 update; absent where all returns are equal or one is not finite
    grad_norm lr optimizer_steps nonfinite_steps trained_tokens seconds    as in the policy's update

scripts/site_pages.py reads this table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ajet.core.ranks.ranks import Ranks
from ajet.core.update.layouts.layout import Row
from ajet.core.update.optimizer import StepOutcome


@dataclass(slots=True)
class CriticMetrics:
    """Collects the metrics of one `Critic.update`; the arrays have all trained tokens."""

    returns_N: NDArray[np.float64]
    values_N: NDArray[np.float64]
    loss: float = 0.0
    num_tokens: int = 0
    num_cut: int = 0
    steps: list[StepOutcome] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        rows: Sequence[Row],
        returns: Sequence[NDArray[np.float32]],
        values: Sequence[NDArray[np.float32]],
    ) -> CriticMetrics:
        return cls(_trained(rows, returns), _trained(rows, values))

    def add(self, loss: Tensor, is_cut_M: Tensor) -> None:
        """Adds one micro-batch of this rank; `loss` is its part of the mini-batch's loss."""
        self.loss += float(loss)
        self.num_tokens += len(is_cut_M)
        self.num_cut += int(is_cut_M.sum())

    def all_reduce(self, ranks: Ranks) -> None:
        """Replaces this rank's sums by those of all ranks; it must be called once, at the end."""
        by_rank = ranks.all_gather((self.loss, self.num_tokens, self.num_cut))
        losses, tokens, cuts = zip(*by_rank, strict=True)
        self.loss, self.num_tokens, self.num_cut = sum(losses), sum(tokens), sum(cuts)

    def result(self, seconds: float) -> dict[str, float]:
        stepped = [step for step in self.steps if step.stepped]
        return {
            "loss": self.loss / max(len(self.steps), 1),
            "clip_fraction": self.num_cut / max(self.num_tokens, 1),
            **self._fit(),
            "grad_norm": sum(step.grad_norm for step in stepped) / max(len(stepped), 1),
            "lr": self.steps[-1].lr if self.steps else 0.0,
            "optimizer_steps": float(len(stepped)),
            "nonfinite_steps": float(len(self.steps) - len(stepped)),
            "trained_tokens": float(len(self.returns_N)),
            "seconds": seconds,
        }

    def _fit(self) -> dict[str, float]:
        if not len(self.returns_N) or not np.isfinite(self.returns_N).all():
            return {}
        fit = {
            "value_mean": float(self.values_N.mean()),
            "return_mean": float(self.returns_N.mean()),
        }
        variance = float(self.returns_N.var())
        if variance > 0:
            residual = float((self.returns_N - self.values_N).var())
            fit["explained_variance"] = 1 - residual / variance
        return fit


def _trained(rows: Sequence[Row], arrays: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
    by_row = [row.trained(arrays[row.sample_index]) for row in rows]
    return np.concatenate(by_row).astype(np.float64) if by_row else np.zeros(0)
