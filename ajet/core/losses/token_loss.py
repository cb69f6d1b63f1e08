"""The interface of a policy loss; every tensor has one entry for each trained token.

A loss is a function of a micro-batch's tokens. If it reads more than one token, a second function
of the whole mini-batch first makes numbers for each token, without gradient:

    gspo    of_mini_batch  {"log_ratio": mean of log(pi / old) over the token's episode}
            of_tokens      reads tokens.mini_batch["log_ratio"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from ajet.core.losses.mini_batch_tokens import MiniBatchTokens, TokenNumbers

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_RATIO = 20.0  # exp() stays finite in float32; the clips act far below this


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What a loss reads, in nats; only `logprobs_M` has a gradient.

    `old_M` are log-probabilities under the policy that sampled: the trainer's before the update, or
    the sampler's. `mini_batch` has the numbers that `PolicyLoss.of_mini_batch` returned."""

    logprobs_M: Tensor
    old_M: Tensor
    advantages_M: Tensor
    mini_batch: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def ratio_M(self) -> Tensor:
        """Returns pi / old of each token."""
        return (self.logprobs_M - self.old_M).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """The loss of each token.

    `ratio_M` is the ratio that the loss uses, a token's or an episode's. `cuts` has, by name, masks
    of the tokens on which a bound acted; they become `clip_fraction_…` metrics."""

    loss_M: Tensor
    ratio_M: Tensor
    cuts: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A loss: its two functions and its traits.

    `scope` is "token" without a second function. With "episode" all timelines of an episode are
    computed where one of them has an advantage, with "mini_batch" all samples.

    `needs_advantage` means that a token with advantage 0 has no gradient by itself. Where it is
    false, all samples are computed and each mini-batch makes an optimizer step."""

    of_tokens: Callable[[LossInputs, Any], TokenLoss]
    of_mini_batch: Callable[[MiniBatchTokens, Any], TokenNumbers] | None = None
    scope: Literal["token", "episode", "mini_batch"] = "token"
    needs_advantage: bool = True
    settings: type | None = None
    """A dataclass whose fields are keys of `trainer_common.algorithm`."""
    weighs_by_sampler: bool = False
    """Its weight is already policy over sampler, which importance weights would repeat."""
    warnings: Callable[[Any], Iterator[str]] | None = None
    """Yields what is unusual about its settings, compared with its paper."""

    @property
    def reads(self) -> frozenset[str]:
        """Returns the keys of the config that it reads."""
        return frozenset(f.name for f in fields(self.settings)) if self.settings else frozenset()
