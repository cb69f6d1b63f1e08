"""The reference: the policy as it was at the start, for a KL term that keeps the policy near it.

With LoRA it is the policy with its adapters switched off; otherwise a frozen copy. It
must be built before a checkpoint is loaded into the policy.
"""

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from ajet.core.update.layouts import make_layout
from ajet.core.update.layouts.layout import Layout, Row
from ajet.core.update.lora import adapters_off
from ajet.core.update.loss import score_tokens
from ajet.core.update.ranks import Ranks
from ajet.core.update.settings import UpdateSettings
from ajet.core.update.shards import reshard


class Reference:
    """Computes log-probabilities of trained tokens under the initial policy, without gradient."""

    def __init__(
        self, model: nn.Module, policy_layout: Layout, settings: UpdateSettings, ranks: Ranks
    ) -> None:
        self._temperature = settings.temperature
        self._adapted_model = model if settings.lora else None
        self._frozen_copy: nn.Module | None = None
        if self._adapted_model is not None:
            self._layout = policy_layout
        else:
            self._frozen_copy = copy.deepcopy(model).requires_grad_(False)
            device = ranks.device(model)
            self._layout = make_layout(
                self._frozen_copy, settings.batch_layout, device, ranks.sequence
            )
            ranks.shard(self._frozen_copy)

    @torch.no_grad()
    def logprobs(self, rows: Sequence[Row], targets_M: Tensor) -> Tensor:
        with self._reference_weights():
            output = self._layout.forward(rows)
            logprobs_M = score_tokens(output, targets_M, self._temperature, False).logprobs_M
        if self._frozen_copy is not None:
            reshard(self._frozen_copy)  # without a backward pass nothing else reshards it
        return logprobs_M

    def _reference_weights(self) -> AbstractContextManager[None]:
        return nullcontext() if self._adapted_model is None else adapters_off(self._adapted_model)
