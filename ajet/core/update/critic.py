"""The critic: a separate causal model that predicts the return before each trained token, at the
same position as the token's log-probability: `v0` after "s q", before a0.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ajet.core.model.precision import wide_dtype
from ajet.core.ranks.ranks import ONE_RANK, Ranks
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.critic_metrics import CriticMetrics
from ajet.core.update.layouts import make_layout
from ajet.core.update.layouts.layout import Layout, Row, concat_to_device, device_of, rows_of
from ajet.core.update.mini_batches import balance_micro_batches, numbers_of_samples, split_by_group
from ajet.core.update.optimizer import ModelOptimizer, TrainedModel
from ajet.core.update.settings import CriticSettings
from ajet.core.update.weights import train_every_embedding

PREFIXES = "critic.weights.", "critic.optimizer."

Arrays = Sequence[NDArray[np.float32]]
"""One array for each sample, as long as the sample."""


class ValueModel(nn.Module):
    """A causal model with a value head, Linear(hidden, 1), at least float32 and 0 at first; its
    output layer is neither used nor trained."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        config: Any = model.config
        dtype = wide_dtype(next(model.parameters()).dtype)
        self.head = nn.Linear(config.hidden_size, 1, device=device_of(model), dtype=dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        untyped: Any = model
        output, inputs = untyped.get_output_embeddings(), untyped.get_input_embeddings()
        # Weight decay would change an output layer without gradient. A tied one is the embedding.
        if output is not None and output.weight is not inputs.weight:
            output.requires_grad_(False)

    def forward(self, layout: Layout, rows: Sequence[Row]) -> Tensor:
        """Returns values ``[M, 1]`` of the rows' trained tokens; `layout` is one over `model`."""
        # The layout calls the model's parts. Inside this module's forward, FSDP gathers its head.
        return self.head(layout.forward_hidden(rows).to(self.head.weight.dtype))


class Critic(TrainedModel):
    """Trains a critic on `model`, a transformers causal model that nothing else trains.

    Several ranks share the work as for the policy."""

    def __init__(self, model: nn.Module, settings: CriticSettings, ranks: Ranks = ONE_RANK) -> None:
        train_every_embedding(model)
        self.settings, self.ranks = settings, ranks
        self.model = ValueModel(model).eval()
        self.device = ranks.device(model)
        self.layout = make_layout(
            model,
            settings.batch_layout,
            self.device,
            ranks.sequence,
            settings.activation_checkpointing,
        )
        ranks.shard(self.model)
        self.optimizer = ModelOptimizer(self.model, settings, prefixes=PREFIXES)

    @torch.no_grad()
    def values(self, samples: Sequence[TrainingSample]) -> list[NDArray[np.float32]]:
        """Returns the value of the state before each trained token, one array ``[T]`` for each
        sample."""
        budget = self.settings.max_tokens_per_micro_batch
        return numbers_of_samples(samples, self._predict, self.layout, budget, self.ranks)

    def update(
        self, samples: Sequence[TrainingSample], returns: Arrays, values: Arrays
    ) -> dict[str, float]:
        """Makes `ppo_epochs` passes over the mini-batches; `values` are the critic's before the
        update."""
        started = time.perf_counter()
        rows = rows_of(samples)
        metrics = CriticMetrics.of(rows, returns, values)
        mini_batches = (
            split_by_group(samples, self.settings.mini_batch_num) * self.settings.ppo_epochs
        )
        for indices in mini_batches:
            part = set(indices)
            mini_batch = [row for row in rows if row.sample_index in part]
            if mini_batch:
                self._train_mini_batch(mini_batch, returns, values, metrics)
        metrics.all_reduce(self.ranks)
        return metrics.result(time.perf_counter() - started)

    def _predict(self, rows: Sequence[Row]) -> Tensor:
        return self.model(self.layout, rows).squeeze(-1)

    def _train_mini_batch(
        self, rows: Sequence[Row], returns: Arrays, values: Arrays, metrics: CriticMetrics
    ) -> None:
        # N of all ranks, before rows are distributed: micro-batches' losses then simply add up.
        num_tokens = sum(len(row.positions) for row in rows)
        budget = self.settings.max_tokens_per_micro_batch
        local = balance_micro_batches(rows, self.layout, budget, self.ranks).local
        for k, micro_batch in enumerate(local):
            self.ranks.begin_micro_batch(self.model, is_last=k + 1 == len(local))
            returns_M, old_M = (
                concat_to_device(
                    (row.trained(of[row.sample_index]) for row in micro_batch), self.device
                )
                for of in (returns, values)
            )
            loss_M, is_cut_M = value_loss(
                self._predict(micro_batch), returns_M, old_M, self.settings.cliprange_value
            )
            loss = loss_M.sum() / num_tokens
            loss.backward()
            metrics.add(loss.detach(), is_cut_M)
        metrics.steps.append(self.optimizer.step())


def value_loss(
    values_M: Tensor, returns_M: Tensor, old_M: Tensor, cliprange: float
) -> tuple[Tensor, Tensor]:
    """Returns the loss of each token, and where the clipped loss is larger. With R the returns,
    `old` the values that the advantages were computed from, and c `cliprange_value`:

        1/2 max( (v - R)^2, (clip(v, old - c, old + c) - R)^2 )

    Where it is clipped it has no gradient: clamp() is constant in the value outside its bounds."""
    clipped_M = torch.clamp(values_M, old_M - cliprange, old_M + cliprange)
    plain_M, cut_M = (values_M - returns_M).square(), (clipped_M - returns_M).square()
    return 0.5 * torch.maximum(plain_M, cut_M), cut_M > plain_M
