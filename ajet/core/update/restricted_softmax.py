"""Log-probabilities of tokens that were sampled under a grammar, in the distribution that they were
drawn from: -inf where the grammar does not allow a token. One that it forced has probability 1 and
no gradient, so its logits are not computed. Suffixes: U rows of features, M tokens, K restricted
ones, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ajet.core.model.precision import to_wide_dtype
from ajet.core.trajectory.sample import FORCED, FREE
from ajet.core.update.layouts.layout import ForwardOutput, Row, concat_to_device


@dataclass(frozen=True, slots=True)
class RowMasks:
    """The masks of a micro-batch: `numbers_M` as in `TokenMasks`, into one table ``[N, bytes]``."""

    numbers_M: Tensor
    table: Tensor

    @classmethod
    def of(cls, rows: Sequence[Row], device: torch.device) -> Self | None:
        """Returns None if no token of the rows was sampled under a grammar."""
        if all(row.sample.masks is None for row in rows):
            return None
        numbers, tables, start = [], [], 0
        for row in rows:
            if row.sample.masks is None:
                numbers.append(np.full(len(row.targets), FREE, np.int64))
                continue
            own = row.trained(row.sample.masks.numbers_T).astype(np.int64)
            # Each sample numbers its own table from 0; FREE and FORCED stay what they are.
            numbers.append(np.where(own >= 0, own + start, own))
            tables.append(row.sample.masks.table)
            start += len(row.sample.masks.table)
        widest = max(table.shape[1] for table in tables)
        table = np.concatenate([np.pad(t, ((0, 0), (0, widest - t.shape[1]))) for t in tables])
        return cls(concat_to_device(numbers, device), torch.from_numpy(table).to(device))

    @property
    def free_M(self) -> Tensor:
        return self.numbers_M == FREE

    @property
    def forced_M(self) -> Tensor:
        return self.numbers_M == FORCED

    def allowed(self, numbers_K: Tensor, vocab_size: int) -> Tensor:
        """Returns which tokens the masks allow ``[K, V]``; a token beyond the tokenizer's
        vocabulary is not allowed."""
        shifts = torch.arange(8, device=self.table.device, dtype=torch.uint8)
        bits = (self.table[numbers_K].unsqueeze(-1) >> shifts) & 1
        allowed = bits.flatten(1)[:, :vocab_size].bool()
        return torch.nn.functional.pad(allowed, (0, vocab_size - allowed.shape[1]))


def restricted_scores(
    output: ForwardOutput,
    targets_M: Tensor,
    masks: RowMasks,
    temperature: float,
    with_entropy_grad: bool,
    max_logits: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the indices [K] in M of the tokens with a mask, their log-probabilities and the
    entropies of what they were drawn from. At most `max_logits` are computed at a time."""
    at_K = torch.nonzero(masks.numbers_M >= 0).squeeze(1)

    def score(features_KD: Tensor, targets_K: Tensor, numbers_K: Tensor) -> tuple[Tensor, Tensor]:
        logits_KV = to_wide_dtype(output.head(features_KD))
        if temperature != 1.0:
            logits_KV = logits_KV / temperature
        allowed_KV = masks.allowed(numbers_K, logits_KV.shape[1])
        logits_KV = logits_KV.masked_fill(~allowed_KV, float("-inf"))
        logprobs_KV = torch.log_softmax(logits_KV, dim=-1)
        with torch.set_grad_enabled(with_entropy_grad and torch.is_grad_enabled()):
            # 0 * -inf is nan, in the gradient too.
            finite_KV = logprobs_KV.masked_fill(~allowed_KV, 0.0)
            entropy_K = -(logprobs_KV.exp() * finite_KV).sum(-1)
        return logprobs_KV.gather(1, targets_K.unsqueeze(1)).squeeze(1), entropy_K

    # A slice of tokens at a time, since [K, V] may be the largest tensor of the update.
    step = max(1, max_logits // output.vocab_size)
    parts = []
    for part_K in at_K.split(step):
        inputs = (output.features_UD[output.index_M[part_K]], targets_M[part_K])
        arguments = (*inputs, masks.numbers_M[part_K])
        if len(at_K) <= step:
            parts.append(score(*arguments))
        else:  # computed once more in the backward pass, instead of kept
            parts.append(
                checkpoint(score, *arguments, use_reentrant=False, preserve_rng_state=False)
            )
    logprobs_K, entropy_K = (torch.cat(part) for part in zip(*parts, strict=True))
    return at_K, logprobs_K, entropy_K
