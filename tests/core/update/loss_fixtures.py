"""Random log-probabilities, advantages and masks as padded rows, and our losses over them."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from update_fixtures import sample

from ajet.core.losses import LOSSES
from ajet.core.losses.mini_batch_tokens import MiniBatchTokens
from ajet.core.losses.token_loss import LossInputs
from ajet.core.update.layouts.layout import rows_of
from ajet.core.update.loss import episode_weights


@dataclass
class Batch:
    """Rows ``[B, T]`` of responses, float64; one row is one episode."""

    logprobs_BT: Tensor
    old_BT: Tensor
    advantages_BT: Tensor
    mask_BT: Tensor

    def samples(self):
        """With one token of context before each row."""
        masks = ["0" + "".join(str(int(m)) for m in row) for row in self.mask_BT]
        return [sample(range(len(m)), m, episode=f"e{i}") for i, m in enumerate(masks)]

    def mini_batch(self):
        """All trained tokens; the old log-probabilities are the sampler's."""
        is_trained_BT = self.mask_BT.bool()
        logprobs_M, old_M, advantages_M = (
            each[is_trained_BT].numpy()
            for each in (self.logprobs_BT, self.old_BT, self.advantages_BT)
        )
        episodes_M = np.nonzero(is_trained_BT.numpy())[0]
        return MiniBatchTokens(logprobs_M, old_M, old_M, advantages_M, episodes_M)

    def loss(self, settings):
        """Our loss, its gradient on `logprobs_BT`, and what the token loss says."""
        logprobs_BT = self.logprobs_BT.clone().requires_grad_()
        is_trained_BT = self.mask_BT.bool()
        logprobs_M, old_M = logprobs_BT[is_trained_BT], self.old_BT[is_trained_BT]
        samples = self.samples()
        rows = rows_of(samples)
        policy_loss, numbers = LOSSES[settings.policy_loss], {}
        if policy_loss.of_mini_batch is not None:
            found = policy_loss.of_mini_batch(self.mini_batch(), settings)
            numbers = {name: torch.from_numpy(values_M) for name, values_M in found.items()}
        tokens = LossInputs(logprobs_M, old_M, self.advantages_BT[is_trained_BT], numbers)
        found = policy_loss.of_tokens(tokens, settings)
        weights = episode_weights(samples, settings)
        weights_M = torch.cat(
            [torch.full((len(r.positions),), weights[r.episode_id]) for r in rows]
        )
        loss = (weights_M.double() * found.loss_M).sum()
        return loss, torch.autograd.grad(loss, logprobs_BT)[0], found


def random_batch(seed, *, per_row_advantages=False):
    """Ragged masks with holes; ratios from far below to far above 1; advantages of both signs and
    one row of zeros."""
    rng = np.random.default_rng(seed)
    shape = (6, 9)
    mask_BT = (rng.random(shape) < 0.7) & (np.arange(9) < rng.integers(3, 10, (6, 1)))
    mask_BT[:, 0] = True
    logprobs_BT = -rng.exponential(1.5, shape)
    old_BT = logprobs_BT + rng.normal(0, 0.6, shape)
    advantages_BT = rng.normal(0, 1, (6, 1) if per_row_advantages else shape) * np.ones(shape)
    advantages_BT[3] = 0.0
    arrays = (logprobs_BT, old_BT, advantages_BT, mask_BT.astype(np.float64))
    return Batch(*(torch.from_numpy(array) for array in arrays))
