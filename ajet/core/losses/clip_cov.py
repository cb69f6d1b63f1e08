"""Clip-Cov (arXiv 2505.22617): PPO, without the gradient of some tokens whose log-probability and
advantage go together, because these lower the entropy most.

    c = (A - mean A) (log pi - mean log pi)        means over the mini-batch's trained tokens
    among the tokens with c between clip_cov_low and clip_cov_high that PPO does not clip,
    `cov_share` of all trained tokens (rounded down, at least 1) are drawn and have no policy loss
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ajet.core.losses.mini_batch_tokens import Floats, MiniBatchTokens, TokenNumbers
from ajet.core.losses.ppo import ClipBounds, clipped_surrogate_loss, clipped_tokens, unusual_bounds
from ajet.core.losses.token_loss import LossInputs, PolicyLoss, TokenLoss


@dataclass(frozen=True)
class CovShare:
    """The setting that clip_cov and kl_cov share."""

    cov_share: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            description="clip_cov, kl_cov: share of a mini-batch's tokens that they choose.",
        ),
    ] = 0.0002


@dataclass(frozen=True)
class ClipCovSettings(ClipBounds, CovShare):
    clip_cov_low: Annotated[
        float, Field(description="clip_cov: it chooses among tokens with a larger covariance.")
    ] = 1.0
    clip_cov_high: Annotated[float, Field(description="clip_cov: and with a smaller one.")] = 5.0


def covariances(tokens: MiniBatchTokens) -> Floats:
    """Returns each token's part of the covariance of advantages and log-probabilities."""
    advantages_M = tokens.advantages_M.astype(np.float64)
    logprobs_M = tokens.logprobs_M.astype(np.float64)
    return (advantages_M - advantages_M.mean()) * (logprobs_M - logprobs_M.mean())


def choose(ordered: NDArray[np.int64], num_tokens: int, settings: CovShare) -> TokenNumbers:
    """Returns 1 for the first `cov_share` of all tokens, in the order of the indices `ordered`, and
    0 for the others."""
    chosen_M = np.zeros(num_tokens)
    chosen_M[ordered[: max(1, int(settings.cov_share * num_tokens))]] = 1.0
    return {"chosen": chosen_M}


def drawn_tokens(tokens: MiniBatchTokens, settings: ClipCovSettings) -> TokenNumbers:
    import torch

    covariances_M = covariances(tokens)
    ratio_M, advantages_M = torch.from_numpy(np.exp(tokens.log_ratio_M)), tokens.advantages_M
    cuts = clipped_tokens(ratio_M, torch.from_numpy(advantages_M), settings)
    is_within_M = covariances_M > settings.clip_cov_low
    is_within_M &= covariances_M < settings.clip_cov_high
    candidates = np.flatnonzero(is_within_M & ~(cuts["low"] | cuts["high"]).numpy())
    # The seed is that of the run and the optimizer step: ranks and resumed runs draw the same.
    drawn = np.random.default_rng(tokens.seed).permutation(candidates)
    return choose(drawn, len(covariances_M), settings)


def clip_cov(tokens: LossInputs, settings: ClipCovSettings) -> TokenLoss:
    import torch

    ratio_M = tokens.ratio_M
    chosen_M = tokens.mini_batch["chosen"] != 0
    loss_M, cuts = clipped_surrogate_loss(ratio_M, tokens.advantages_M, settings)
    return TokenLoss(torch.where(chosen_M, 0.0, loss_M), ratio_M, cuts | {"cov": chosen_M})


CLIP_COV = PolicyLoss(
    clip_cov, drawn_tokens, "mini_batch", settings=ClipCovSettings, warnings=unusual_bounds
)
