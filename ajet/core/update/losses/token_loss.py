"""What a loss gets and what it gives back; every tensor has one entry for each trained token.

Where an importance ratio pi / old is written, `old` is the policy that sampled: the trainer's own
log-probabilities before the update, or the sampler's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

MAX_LOG_RATIO = 20.0  # exp() stays finite in float32; the clip acts long before


@dataclass(frozen=True, slots=True)
class LossInputs:
    """`logprobs_M` alone carries a gradient. The two of the episode are the mean and the sum of
    log(pi / old) over all trained tokens of the token's episode, for losses of `OF_EPISODES`."""

    logprobs_M: Tensor
    old_M: Tensor
    advantages_M: Tensor
    episode_mean_M: Tensor | None = None
    episode_sum_M: Tensor | None = None

    @property
    def ratio_M(self) -> Tensor:
        """pi / old of each token."""
        return (self.logprobs_M - self.old_M).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """`ratio_M` is the one that the loss speaks of, a token's or an episode's; `cuts` names which
    tokens a bound acted on: they become `clip_fraction_…` metrics."""

    loss_M: Tensor
    ratio_M: Tensor
    cuts: Mapping[str, Tensor] = field(default_factory=dict)
