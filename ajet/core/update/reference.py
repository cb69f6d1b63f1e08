"""The reference: the policy as it was at the start, for a KL term that keeps the policy near it.

With LoRA it is the policy with its adapters switched off; otherwise a frozen copy. It
must be built before a checkpoint is loaded into the policy.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ajet.core.update.frozen_model import FrozenModel
from ajet.core.update.layouts.layout import Layout, Row
from ajet.core.update.lora import adapters_off
from ajet.core.update.loss import score_tokens
from ajet.core.update.ranks import Ranks
from ajet.core.update.settings import UpdateSettings


class Reference:
    """Computes log-probabilities of trained tokens under the initial policy, without gradient."""

    def __init__(
        self, model: nn.Module, policy_layout: Layout, settings: UpdateSettings, ranks: Ranks
    ) -> None:
        self._policy_model, self._policy_layout = model, policy_layout
        self._temperature = settings.temperature
        self.frozen_copy: FrozenModel | None = None
        if not settings.lora:
            self.frozen_copy = FrozenModel(copy.deepcopy(model), settings, ranks)

    @torch.no_grad()
    def logprobs(self, rows: Sequence[Row], targets_M: Tensor) -> Tensor:
        if self.frozen_copy is not None:
            return self.frozen_copy.logprobs(rows, targets_M)
        with adapters_off(self._policy_model):
            output = self._policy_layout.forward(rows)
            return score_tokens(output, targets_M, self._temperature, False).logprobs_M
