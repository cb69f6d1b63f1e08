"""The model that learns: samples of one training step in, changed weights and metrics out.

    samples ─ mini-batches (whole groups, in order) ─ micro-batches (token budget) ─ layout
                    │                                                            │
              one optimizer step each  <── gradients add up <── loss <── log-probs of trained tokens

Old log-probabilities are the sampler's recorded ones, in every mini-batch. Samples whose every
advantage is 0 have no gradient when there is neither KL nor entropy term: they are not computed
(`skipped_samples`), and still count in the denominators.

The weights are the model's own: an engine that holds the same model sees each step at once. The
same samples in the same order give bit-identical weights.

Not covered: critics, sharding over devices, learning from several policies at once.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.checkpoint import WEIGHT_PREFIX
from ajet.core.update.layouts import make_layout
from ajet.core.update.layouts.layout import Row, device_of
from ajet.core.update.lora import with_lora
from ajet.core.update.loss import clipped_objective, episode_weights, kl_penalty, score_tokens
from ajet.core.update.optimizer import PolicyOptimizer
from ajet.core.update.reference import Reference
from ajet.core.update.settings import UpdateSettings
from ajet.core.update.update_metrics import TokenValues, UpdateMetrics
from ajet.core.update.weights import load_weights, trainable

OPTIMIZER_PREFIX = "optimizer."


class PolicyState(NamedTuple):
    """What a checkpoint keeps of a policy: tensors by name, and JSON."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]


class Policy:
    """`model` is a transformers causal model (with `settings.lora` it is wrapped, in place)."""

    def __init__(self, model: nn.Module, settings: UpdateSettings) -> None:
        _train_every_embedding(model)
        self.settings = settings
        self.model = with_lora(model, settings.lora) if settings.lora else model
        self.model.eval()  # no dropout: the ratio compares with what the sampler computed
        self.layout = make_layout(self.model, settings.batch_layout)
        self.optimizer = PolicyOptimizer(self.model, settings)
        self.reference = (
            Reference(self.model, self.layout, settings) if settings.kl_loss_coef else None
        )

    def update(
        self,
        samples: Sequence[TrainingSample],
        *,
        on_progress: Callable[[float], None] | None = None,
    ) -> dict[str, float]:
        """All mini-batches of one training step. `on_progress` gets the fraction done."""
        started = time.perf_counter()
        metrics = UpdateMetrics(samples)
        mini_batches = split_by_group(samples, self.settings.mini_batch_num)
        for i, mini_batch in enumerate(mini_batches):
            for fraction in self._learn(mini_batch, metrics):
                if on_progress:
                    on_progress((i + fraction) / len(mini_batches))
        return metrics.result(time.perf_counter() - started)

    def state_dict(self) -> PolicyState:
        """Trainable weights and the optimizer's state, not copied."""
        tensors = {f"{WEIGHT_PREFIX}{n}": p.detach() for n, p in self._trainable().items()}
        tensors |= {f"{OPTIMIZER_PREFIX}{n}": t for n, t in self.optimizer.tensors().items()}
        counters = {
            "num_steps": self.optimizer.num_steps,
            "num_skipped": self.optimizer.num_skipped,
        }
        return PolicyState(tensors, counters)

    @torch.no_grad()
    def load_state_dict(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        load_weights(self._trainable(), tensors)
        cut = len(OPTIMIZER_PREFIX)
        optimizer = {n[cut:]: t for n, t in tensors.items() if n.startswith(OPTIMIZER_PREFIX)}
        self.optimizer.load(optimizer, int(state["num_steps"]), int(state["num_skipped"]))

    def _trainable(self) -> dict[str, nn.Parameter]:
        return trainable(self.model)

    def _learn(
        self, mini_batch: Sequence[TrainingSample], metrics: UpdateMetrics
    ) -> Iterator[float]:
        """One optimizer step; yields the fraction done."""
        weights = episode_weights(mini_batch, self.settings)
        if not weights:
            metrics.empty_mini_batches += 1
            return
        rows = [Row.of(s, weights[s.episode_id]) for s in mini_batch if self._has_gradient(s)]
        micro_batches = self.layout.split(rows, self.settings.max_tokens_per_micro_batch)
        for k, micro_batch in enumerate(micro_batches):
            self._backward(micro_batch, metrics)
            yield (k + 1) / (len(micro_batches) + 1)
        metrics.steps.append(self.optimizer.step())
        yield 1.0

    def _has_gradient(self, sample: TrainingSample) -> bool:
        if not sample.num_trained:
            return False
        every = self.settings.kl_loss_coef or self.settings.entropy_coef
        return bool(every) or bool(sample.advantages[sample.loss_mask].any())

    def _backward(self, rows: Sequence[Row], metrics: UpdateMetrics) -> None:
        """Adds the gradient of one micro-batch to the weights'."""
        settings, device = self.settings, device_of(self.model)
        targets_M = _tensor([row.targets for row in rows], device)
        old_M = _tensor([row.logprobs for row in rows], device)
        advantages_M = _tensor([row.advantages for row in rows], device)
        weights_M = _tensor([np.full_like(row.logprobs, row.weight) for row in rows], device)

        read = self.layout.read_out(rows)
        scores = score_tokens(read, targets_M, settings.temperature, settings.entropy_coef != 0)
        pg_M, ratio_M = clipped_objective(scores.logprobs_M, old_M, advantages_M, settings)
        loss_M, kl_M = pg_M, torch.zeros_like(old_M)
        if settings.entropy_coef:
            loss_M = loss_M - settings.entropy_coef * scores.entropy_M
        if self.reference is not None:
            reference_M = self.reference.logprobs(rows, targets_M)
            kl_M = kl_penalty(scores.logprobs_M, reference_M, settings.kl_loss_type)
            loss_M = loss_M + settings.kl_loss_coef * kl_M
        torch.sum(weights_M * loss_M).backward()

        log_ratio_M = scores.logprobs_M - old_M
        values = TokenValues(
            weights_M,
            loss_M.detach(),
            pg_M.detach(),
            kl_M.detach(),
            scores.entropy_M.detach(),
            ratio_M.detach(),
            log_ratio_M.detach(),
            advantages_M,
        )
        metrics.add(rows, read.num_computed, values, settings)


def split_by_group(samples: Sequence[TrainingSample], num: int) -> list[list[TrainingSample]]:
    """At most `num` parts of whole groups, in order of appearance, sizes differing by one group."""
    groups: dict[str, list[TrainingSample]] = {}
    for sample in samples:
        groups.setdefault(sample.group_id, []).append(sample)
    members = list(groups.values())
    parts = np.array_split(np.arange(len(members)), num)
    return [[s for g in part for s in members[g]] for part in parts if len(part)]


def _tensor(arrays: list[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(np.concatenate(arrays)).to(device)


def _train_every_embedding(model: nn.Module) -> None:
    # torch drops the gradient of `padding_idx`; the id may stand in text.
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.padding_idx = None
