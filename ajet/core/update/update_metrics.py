"""Metrics of one update of the policy: sums over micro-batches, turned into floats at the end.

    loss                         the objective, averaged over optimizer steps
    pg_loss kl cross_entropy kl_teacher    means of a component's value over the tokens that carry
                                 it, absent where none does; without a coefficient `kl` is 0
    entropy                      mean over trained tokens
    clip_fraction_low/high/…     share of tokens that a bound of the loss acted on
    ratio_max                    largest of the ratios that the loss uses
    empty_mini_batches           mini-batches without a gradient, which make no optimizer step
    trained_tokens               tokens in the loss masks; `tree_tokens` are those that the forward
                                 passes with gradient compute, `padded_tokens` those of padded
                                 rectangles of the same rows
    router_balance router_aux_loss router_changed    the experts' load (core/model/routers.py)
    restricted_tokens            trained tokens that were sampled under a grammar, if there are any;
    forced_fraction              the share of them for which it allowed no other token

The next metrics compare sampler and trainer over the first mini-batch, where the policy is still
the one that sampled; r = trainer / sampler of a token:

    logprob_diff_max/mean        |log r|
    sampler_kl, sampler_kl_k3    KL(sampler || trainer): means of -log r and of r - 1 - log r
    sampler_ess                  effective sample size of weights r, as a fraction
    sampler_ratio_max            largest r

Means are over computed tokens: `skipped_samples` have no gradient and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ajet.core.losses.token_loss import MAX_LOG_RATIO
from ajet.core.model.precision import float64_device
from ajet.core.model.routers import RouterLoad
from ajet.core.ranks.ranks import Ranks
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.layouts.layout import Layout, Row
from ajet.core.update.optimizer import StepOutcome


@dataclass(frozen=True, slots=True)
class TokenValues:
    """What one micro-batch computed for its trained tokens, without gradient."""

    loss: Tensor  # one number: the micro-batch's part of the objective
    values: Mapping[str, Tensor]  # by metric: one value for each token that carries it
    ratio: Tensor  # of the tokens with a policy loss
    log_ratio: Tensor  # of the sampled tokens: log(trainer / sampler)


@dataclass(slots=True)
class SamplerGap:
    """Compares sampler and trainer, token by token."""

    num_tokens: int = 0
    diff_max: float = 0.0
    ratio_max: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, log_ratio_M: Tensor) -> None:
        # In float64: k3 is a small difference of numbers near 1.
        log_ratio_M = log_ratio_M.to(float64_device(log_ratio_M.device)).double()
        ratio_M = log_ratio_M.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        by_name = {
            "diff": log_ratio_M.abs(),
            "k1": -log_ratio_M,
            "k3": ratio_M - 1 - log_ratio_M,
            "ratio": ratio_M,
            "square": ratio_M.square(),
        }
        sums = _sums(by_name)
        self.sums = {key: self.sums.get(key, 0.0) + value for key, value in sums.items()}
        self.num_tokens += len(log_ratio_M)
        self.diff_max = max(self.diff_max, float(by_name["diff"].max()))
        self.ratio_max = max(self.ratio_max, float(ratio_M.max()))

    @classmethod
    def merge(cls, gaps: Sequence[SamplerGap]) -> SamplerGap:
        return cls(
            sum(gap.num_tokens for gap in gaps),
            max(gap.diff_max for gap in gaps),
            max(gap.ratio_max for gap in gaps),
            _merge_sums([gap.sums for gap in gaps]),
        )

    def result(self) -> dict[str, float]:
        """Returns the metrics; without a token only the differences, which are 0."""
        num = self.num_tokens
        differences = {
            "logprob_diff_max": self.diff_max,
            "logprob_diff_mean": self.sums.get("diff", 0.0) / max(num, 1),
        }
        if not num:
            return differences
        return differences | {
            "sampler_kl": self.sums["k1"] / num,
            "sampler_kl_k3": self.sums["k3"] / num,
            "sampler_ess": self.sums["ratio"] ** 2 / (num * self.sums["square"]),  # (Σr)² / (n Σr²)
            "sampler_ratio_max": self.ratio_max,
        }


@dataclass(slots=True)
class UpdateMetrics:
    """Collects the metrics of one `Policy.update`. Sums are of this rank's tokens until
    `all_reduce`; the counts of rows and computed tokens are of all ranks from the start."""

    samples: Sequence[TrainingSample]
    num_epochs: int = 1
    gap: SamplerGap = field(default_factory=SamplerGap)
    sums: dict[str, float] = field(default_factory=dict)
    ratio_max: float = 0.0
    numbers: dict[str, float] = field(default_factory=dict)  # how many values are in each sum
    num_rows: int = 0
    num_computed: int = 0
    num_padded: int = 0
    empty_mini_batches: int = 0
    steps: list[StepOutcome] = field(default_factory=list)
    load: RouterLoad | None = None

    def count(self, micro_batches: Sequence[Sequence[Row]], layout: Layout) -> None:
        """Counts the micro-batches of one mini-batch, whichever rank computes them."""
        for rows in micro_batches:
            self.num_rows += len(rows)
            self.num_computed += layout.num_computed(rows)
            self.num_padded += len(rows) * max(map(len, rows))

    def add(self, values: TokenValues) -> None:
        """Adds one micro-batch of this rank; an idle one has no tokens."""
        if not len(values.values["entropy"]):
            return
        self.sums = _merge_sums([self.sums, _sums({"loss": values.loss, **values.values})])
        numbers = {name: len(values_M) for name, values_M in values.values.items()}
        self.numbers = _merge_sums([self.numbers, numbers])
        if len(values.ratio):
            self.ratio_max = max(self.ratio_max, float(values.ratio.max()))
        # Only the first mini-batch, before a step has changed the policy.
        if not self.steps and len(values.log_ratio):
            self.gap.add(values.log_ratio)

    def all_reduce(self, ranks: Ranks) -> None:
        """Sums over the ranks; it must be called once, at the end."""
        by_rank = ranks.all_gather((self.sums, self.ratio_max, self.numbers, self.gap, self.load))
        sums, ratios, numbers, gaps, loads = zip(*by_rank, strict=True)
        self.sums, self.numbers = _merge_sums(sums), _merge_sums(numbers)
        self.ratio_max, self.gap = max(ratios), SamplerGap.merge(gaps)
        if self.load is not None:
            self.load = RouterLoad.merge(loads)

    def result(self, seconds: float) -> dict[str, float]:
        # Times the inverse: a division rounds differently from the recorded runs.
        means = {n: self.sums[n] * (1.0 / max(k, 1)) for n, k in self.numbers.items()}
        if "pg_loss" in means:
            means.setdefault("kl", 0.0)
        groups = {s.group_id for s in self.samples}
        groups_with_signal = {s.group_id for s in self.samples if s.has_signal}
        num_steps = max(len(self.steps), 1)
        stepped = [s for s in self.steps if s.stepped]
        return {
            "loss": self.sums.get("loss", 0.0) / num_steps,
            **means,
            "ratio_max": self.ratio_max,
            **self.gap.result(),
            "grad_norm": sum(s.grad_norm for s in stepped) / max(len(stepped), 1),
            "lr": self.steps[-1].lr if self.steps else 0.0,
            "optimizer_steps": float(len(stepped)),
            "nonfinite_steps": float(len(self.steps) - len(stepped)),
            "empty_mini_batches": float(self.empty_mini_batches),
            "trained_tokens": float(sum(s.num_trained for s in self.samples)),
            **self._restricted(),
            **(self.load.result() if self.load is not None and self.num_rows else {}),
            "tree_tokens": float(self.num_computed),
            "padded_tokens": float(self.num_padded),
            "skipped_samples": len(self.samples) - self.num_rows / self.num_epochs,
            "groups": float(len(groups)),
            "groups_without_signal": float(len(groups - groups_with_signal)),
            "seconds": seconds,
        }

    def _restricted(self) -> dict[str, float]:
        masks = [sample.masks for sample in self.samples if sample.masks is not None]
        number = sum(m.num_restricted for m in masks)
        forced = sum(m.num_forced for m in masks)
        if not number:
            return {}
        return {"restricted_tokens": float(number), "forced_fraction": forced / number}


def _merge_sums(sums: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Adds key by key, in the order in which keys appear."""
    names = dict.fromkeys(name for addend in sums for name in addend)
    return {name: sum(addend.get(name, 0.0) for addend in sums) for name in names}


def _sums(values: Mapping[str, Tensor]) -> dict[str, float]:
    # Stacked, so that a GPU is waited for once.
    return dict(zip(values, torch.stack([p.sum() for p in values.values()]).tolist(), strict=True))
