"""The inputs and outputs of a policy loss; every tensor has one entry for each trained token.

In an importance ratio pi / old, `old` is the policy that sampled: the trainer's own
log-probabilities before the update, or the sampler's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

MAX_LOG_RATIO = 20.0  # exp() stays finite in float32; the clips act far below this


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Holds what a loss reads; only `logprobs_M` carries a gradient.

    `episode_mean_M` and `episode_sum_M` are the mean and the sum of log(pi / old) over all trained
    tokens of the token's episode; they are given to the losses of `EPISODE_LEVEL_LOSSES`.
    """

    logprobs_M: Tensor
    old_M: Tensor
    advantages_M: Tensor
    episode_mean_M: Tensor | None = None
    episode_sum_M: Tensor | None = None

    @property
    def ratio_M(self) -> Tensor:
        """Returns pi / old of each token."""
        return (self.logprobs_M - self.old_M).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Holds the loss of each token.

    `ratio_M` is the ratio that the loss uses, a token's or an episode's. `cuts` tells by name which
    tokens a bound acted on; they become `clip_fraction_…` metrics.
    """

    loss_M: Tensor
    ratio_M: Tensor
    cuts: Mapping[str, Tensor] = field(default_factory=dict)
