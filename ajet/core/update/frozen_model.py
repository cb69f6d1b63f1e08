"""A model that is never trained, and scores the policy's tokens: a reference's copy, a teacher.

It has weights alone: no optimizer, no float32 masters, no gradients. Its layouts and ranks are the
policy's. Not covered: which model it is (reference.py, learning/teacher.py).
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.layouts import make_layout
from ajet.core.update.layouts.layout import (
    Row,
    concat_to_device,
    rows_of,
    scatter_to_samples,
)
from ajet.core.update.loss import score_tokens
from ajet.core.update.micro_batch_balancing import balance_micro_batches
from ajet.core.update.ranks import ONE_RANK, Ranks
from ajet.core.update.settings import UpdateSettings
from ajet.core.update.shards import reshard


class FrozenModel:
    """Computes log-probabilities of trained tokens under `model`, at the settings' temperature.

    The model is frozen and, with several ranks, sharded, both in place.
    """

    def __init__(self, model: nn.Module, settings: UpdateSettings, ranks: Ranks = ONE_RANK) -> None:
        self.model = model.requires_grad_(False).eval()
        self._settings, self._ranks = settings, ranks
        self._device = ranks.device(model)
        self._layout = make_layout(model, settings.batch_layout, self._device, ranks.sequence)
        ranks.shard(model)

    @torch.no_grad()
    def logprobs(self, rows: Sequence[Row], targets_M: Tensor) -> Tensor:
        """Returns the log-probability of each trained token of the rows."""
        output = self._layout.forward(rows)
        scores = score_tokens(output, targets_M, self._settings.temperature, False)
        reshard(self.model)  # without a backward pass nothing else reshards it
        return scores.logprobs_M

    def score(self, samples: Sequence[TrainingSample]) -> list[NDArray[np.float32]]:
        """Returns log-probabilities of the trained tokens: one array for each sample, as long as
        the sample, with 0 at all other tokens."""
        budget = self._settings.max_tokens_per_micro_batch
        own = balance_micro_batches(rows_of(samples), self._layout, budget, self._ranks).local
        targets = (concat_to_device((row.targets for row in rows), self._device) for rows in own)
        results = (
            (rows, self.logprobs(rows, ids_M)) for rows, ids_M in zip(own, targets, strict=True)
        )
        return scatter_to_samples(samples, results, self._ranks)
