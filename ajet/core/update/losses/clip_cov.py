"""Clip-Cov (arXiv 2505.22617): PPO, without the gradient of some tokens whose log-probability and
advantage go together, because these lower the entropy most.

    c = (A - mean A) (log pi - mean log pi)        means over the mini-batch's trained tokens
    tokens whose c is between clip_cov_low and clip_cov_high and that PPO's clip leaves: as many as
    `cov_share` of all trained tokens (rounded down, at least 1) are drawn and have no policy loss

The draw is the run's: it follows from its seed and the optimizer step.
"""

import numpy as np
import torch

from ajet.core.update.losses.ppo import clipped_surrogate_loss
from ajet.core.update.losses.token_loss import LossInputs, PolicyLoss, TokenLoss
from ajet.core.update.mini_batch_tokens import Floats, MiniBatchTokens, TokenNumbers
from ajet.core.update.settings import UpdateSettings


def covariances(tokens: MiniBatchTokens) -> Floats:
    """Returns each token's part of the covariance of advantages and log-probabilities."""
    advantages_M = tokens.advantages_M.astype(np.float64)
    logprobs_M = tokens.logprobs_M.astype(np.float64)
    return (advantages_M - advantages_M.mean()) * (logprobs_M - logprobs_M.mean())


def num_chosen(tokens: MiniBatchTokens, settings: UpdateSettings) -> int:
    return max(1, int(settings.cov_share * len(tokens.logprobs_M)))


def chosen_tokens(tokens: MiniBatchTokens, settings: UpdateSettings) -> TokenNumbers:
    covariances_M, advantages_M = covariances(tokens), tokens.advantages_M
    ratio_M = np.exp(tokens.log_ratio_M)
    is_clipped_M = (advantages_M > 0) & (ratio_M > 1 + settings.clip_high)
    is_clipped_M |= (advantages_M < 0) & (ratio_M < 1 - settings.clip_low)
    is_within_M = covariances_M > settings.clip_cov_low
    is_within_M &= covariances_M < settings.clip_cov_high
    candidates = np.flatnonzero(is_within_M & ~is_clipped_M)
    drawn = np.random.default_rng(tokens.seed).permutation(candidates)
    chosen_M = np.zeros(len(covariances_M))
    chosen_M[drawn[: num_chosen(tokens, settings)]] = 1.0
    return {"chosen": chosen_M}


def clip_cov(tokens: LossInputs, settings: UpdateSettings) -> TokenLoss:
    ratio_M = tokens.ratio_M
    chosen_M = tokens.mini_batch["chosen"] != 0
    loss_M, cuts = clipped_surrogate_loss(ratio_M, tokens.advantages_M, settings)
    return TokenLoss(torch.where(chosen_M, 0.0, loss_M), ratio_M, cuts | {"cov": chosen_M})


CLIP_COV = PolicyLoss(clip_cov, chosen_tokens, reads="mini_batch")
