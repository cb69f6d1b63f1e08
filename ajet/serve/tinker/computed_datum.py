"""A datum of a forward_backward with what was computed for it, as the record sees it.

    tokens     p0 p1 p2 a0 a1 o0 b0      position n predicts target n
    targets    p1 p2 a0 a1 o0 b0 b1
    trained     0  0  1  1  0  1  1      turn 0: p0 p1 p2 -> a0 a1
    spans            [2, 4)   [5, 7)     turn 1: p0 p1 p2 a0 a1 o0 -> b0 b1

For cross_entropy a position is trained if its weight is not 0. For the other losses it is one that
was sampled: its advantage, its `logprobs` or its mask of gspo is not 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ajet.core.losses.token_loss import MAX_LOG_RATIO
from ajet.serve.tinker.wire import Datum

MAX_SPANS = 32
"""More spans are recorded as this many, so that a datum takes time and space for its length. The
last one then holds tokens that are not trained."""
NEARLY_1 = -1e-3
"""The log-probability above which a token counts as certain."""


@dataclass(frozen=True)
class ComputedDatum:
    """A datum with one target at each position, and the policy's log-probabilities of its targets.
    `request` counts the forward_backwards of a step, `number` the data of a request. All arrays
    are [N]."""

    loss_fn: str
    config: Mapping[str, float]
    datum: Datum
    policy_logprobs: NDArray[np.float32]
    request: int = 0
    number: int = 0

    @property
    def is_given(self) -> bool:
        """Tells whether the targets were not sampled, as far as the loss tells."""
        return self.loss_fn == "cross_entropy"

    @property
    def tokens(self) -> NDArray[np.int64]:
        return self.datum.tokens_N

    @property
    def targets(self) -> NDArray[np.int64]:
        return self.datum.targets.reshape(-1)

    @cached_property
    def advantages(self) -> NDArray[np.float32]:
        """Returns the advantages; of cross_entropy the weights."""
        return self._input("weights" if self.is_given else "advantages")

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """Returns the sampler's log-probabilities; of cross_entropy the policy's."""
        return self.policy_logprobs if self.is_given else self._input("logprobs")

    @cached_property
    def log_ratio(self) -> NDArray[np.float64]:
        """Returns log(policy / sampler)."""
        return self.policy_logprobs.astype(np.float64) - self.logprobs

    @cached_property
    def ratios(self) -> NDArray[np.float64]:
        """Returns the ratios that the loss uses: the tokens', or with gspo the datum's."""
        log_ratio = self.log_ratio
        if self.loss_fn == "gspo":
            marked = log_ratio[self._input("sequence_ratio_mask") != 0]
            log_ratio = np.full_like(log_ratio, marked.mean() if len(marked) else 0.0)
        return np.exp(log_ratio.clip(-MAX_LOG_RATIO, MAX_LOG_RATIO))

    @cached_property
    def cuts(self) -> dict[str, NDArray[np.bool_]]:
        """Returns where a bound of the loss acted, by the bound; nothing for a loss without."""
        if "clip_low_threshold" not in self.config:
            return {}
        is_low = self.ratios < self.config["clip_low_threshold"]
        is_high = self.ratios > self.config["clip_high_threshold"]
        if self.loss_fn != "cispo":  # the smaller of two terms: a bound acts on one side
            is_low, is_high = is_low & (self.advantages < 0), is_high & (self.advantages > 0)
        return {"low": is_low & self.is_trained, "high": is_high & self.is_trained}

    @cached_property
    def is_trained(self) -> NDArray[np.bool_]:
        if self.is_given:
            return self.advantages != 0
        is_sampled = (self.advantages != 0) | (self.logprobs != 0)
        if self.loss_fn == "gspo":
            is_sampled |= self._input("sequence_ratio_mask") != 0
        if self.advantages.any():
            return is_sampled
        return _with_certain_gaps(is_sampled, self.policy_logprobs > NEARLY_1)

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Returns first and last position + 1 of each turn."""
        spans = _runs(self.is_trained)
        if len(spans) > MAX_SPANS:
            spans[MAX_SPANS - 1 :] = [(spans[MAX_SPANS - 1][0], spans[-1][1])]
        return spans

    @property
    def first_prompt(self) -> NDArray[np.int64]:
        """Returns the tokens before the first trained one; all where none is trained."""
        return self.tokens[: self.spans[0][0] + 1] if self.spans else self.tokens

    def _input(self, name: str) -> NDArray[Any]:
        return self.datum.inputs[name].reshape(-1)


def _runs(is_in: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Returns first and last position + 1 of each run of true values."""
    padded = np.zeros(len(is_in) + 2, np.bool_)
    padded[1:-1] = is_in
    edges = np.flatnonzero(padded[1:] != padded[:-1]).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _with_certain_gaps(
    is_sampled: NDArray[np.bool_], is_certain: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Adds the gaps between sampled tokens, and the end after them, in which all tokens are
    certain: the log-probability of a sampled token may be 0."""
    filled = is_sampled.copy()
    for start, stop in _runs(~is_sampled):
        if start and is_certain[start:stop].all():
            filled[start:stop] = True
    return filled
