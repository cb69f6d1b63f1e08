"""Models that score the policy's tokens and are never trained: a teacher, and the reference.

A frozen model has no optimizer, no float32 masters and no gradients. The reference is the policy
as it was at the start, for a KL term that keeps the policy near it.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from ajet.core.ranks.ranks import ONE_RANK, Ranks
from ajet.core.ranks.shards import reshard
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.layouts import make_layout
from ajet.core.update.layouts.layout import Layout, Row
from ajet.core.update.lora import adapters_off
from ajet.core.update.loss import token_logprobs
from ajet.core.update.mini_batches import numbers_of_samples
from ajet.core.update.settings import UpdateSettings


class FrozenModel:
    """Computes log-probabilities of trained tokens under `model`, at the settings' temperature.

    The model is frozen and, with several ranks, sharded, both in place."""

    def __init__(self, model: nn.Module, settings: UpdateSettings, ranks: Ranks = ONE_RANK) -> None:
        self.model = model.requires_grad_(False).eval()
        self._settings, self._ranks = settings, ranks
        device = ranks.device(model)
        self._layout = make_layout(model, settings.batch_layout, device, ranks.sequence)
        ranks.shard(model)

    def logprobs(self, rows: Sequence[Row]) -> Tensor:
        """Returns the log-probability of each trained token of the rows."""
        logprobs_M = token_logprobs(self._layout, rows, self._settings.temperature)
        reshard(self.model)  # without a backward pass nothing else reshards it
        return logprobs_M

    def score(self, samples: Sequence[TrainingSample]) -> list[NDArray[np.float32]]:
        """Returns log-probabilities of the trained tokens, one array ``[T]`` for each sample."""
        budget = self._settings.max_tokens_per_micro_batch
        return numbers_of_samples(samples, self.logprobs, self._layout, budget, self._ranks)


class Reference:
    """Computes log-probabilities of trained tokens under the initial policy, without gradient.

    With LoRA it is the policy with its adapters switched off, without it a frozen copy. It must be
    built before a checkpoint is loaded into the policy."""

    def __init__(
        self, model: nn.Module, policy_layout: Layout, settings: UpdateSettings, ranks: Ranks
    ) -> None:
        self._policy_model, self._policy_layout = model, policy_layout
        self._temperature = settings.temperature
        self.frozen_copy: FrozenModel | None = None
        if not settings.lora:
            self.frozen_copy = FrozenModel(copy.deepcopy(model), settings, ranks)

    def logprobs(self, rows: Sequence[Row]) -> Tensor:
        """Returns the log-probability of each trained token of the rows."""
        if self.frozen_copy is not None:
            return self.frozen_copy.logprobs(rows)
        # As a frozen copy does, it chooses its experts itself.
        rows = [replace(row, routes=None) for row in rows]
        with adapters_off(self._policy_model):
            return token_logprobs(self._policy_layout, rows, self._temperature)
