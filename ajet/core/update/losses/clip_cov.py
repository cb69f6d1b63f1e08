"""Clip-Cov (arXiv 2505.22617): PPO, without the gradient of some tokens whose log-probability and
advantage go together, because these lower the entropy most.

    c = (A - mean A) (log pi - mean log pi)        means over the mini-batch's trained tokens
    tokens whose c is between clip_cov_low and clip_cov_high and that PPO's clip leaves: as many as
    `cov_share` of all trained tokens (rounded down, at least 1) are drawn and have no policy loss

The draw is the run's: it follows from its seed and the optimizer step.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from ajet.core.update.losses.ppo import clipped_surrogate_loss, clipped_tokens
from ajet.core.update.losses.token_loss import LossInputs, PolicyLoss, TokenLoss
from ajet.core.update.mini_batch_tokens import Floats, MiniBatchTokens, TokenNumbers
from ajet.core.update.settings import UpdateSettings


def covariances(tokens: MiniBatchTokens) -> Floats:
    """Returns each token's part of the covariance of advantages and log-probabilities."""
    advantages_M = tokens.advantages_M.astype(np.float64)
    logprobs_M = tokens.logprobs_M.astype(np.float64)
    return (advantages_M - advantages_M.mean()) * (logprobs_M - logprobs_M.mean())


def choose(ordered: NDArray[np.int64], num_tokens: int, settings: UpdateSettings) -> TokenNumbers:
    """Returns 1 for the first of the tokens whose positions are `ordered`, as many as `cov_share`
    of all tokens, and 0 for the others."""
    chosen_M = np.zeros(num_tokens)
    chosen_M[ordered[: max(1, int(settings.cov_share * num_tokens))]] = 1.0
    return {"chosen": chosen_M}


def drawn_tokens(tokens: MiniBatchTokens, settings: UpdateSettings) -> TokenNumbers:
    covariances_M = covariances(tokens)
    ratio_M, advantages_M = torch.from_numpy(np.exp(tokens.log_ratio_M)), tokens.advantages_M
    cuts = clipped_tokens(ratio_M, torch.from_numpy(advantages_M), settings)
    is_within_M = covariances_M > settings.clip_cov_low
    is_within_M &= covariances_M < settings.clip_cov_high
    candidates = np.flatnonzero(is_within_M & ~(cuts["low"] | cuts["high"]).numpy())
    drawn = np.random.default_rng(tokens.seed).permutation(candidates)
    return choose(drawn, len(covariances_M), settings)


def clip_cov(tokens: LossInputs, settings: UpdateSettings) -> TokenLoss:
    ratio_M = tokens.ratio_M
    chosen_M = tokens.mini_batch["chosen"] != 0
    loss_M, cuts = clipped_surrogate_loss(ratio_M, tokens.advantages_M, settings)
    return TokenLoss(torch.where(chosen_M, 0.0, loss_M), ratio_M, cuts | {"cov": chosen_M})


CLIP_COV = PolicyLoss(clip_cov, drawn_tokens, reads="mini_batch")
