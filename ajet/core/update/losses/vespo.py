"""VESPO (arXiv 2602.10693): a smooth weight of the episode's whole ratio instead of a clip.

    -sg( phi(R) ) A log pi      phi(R) = R^k exp( lambda (1 - R) ),  R = product of pi / old over
                                         the episode's tokens, at least 1e-8
    k, lambda: vespo_k_pos and vespo_lambda_pos where A >= 0, else vespo_k_neg and vespo_lambda_neg

phi(1) is 1; it falls to 0 on both sides of its largest value, at R = k / lambda. R is the policy
over the sampler, so `old_logprobs` is the sampler's. The paper aggregates over tokens
(`token-mean`).
"""

import math

import numpy as np
import torch

from ajet.core.update.losses.token_loss import MAX_LOG_RATIO, LossInputs, PolicyLoss, TokenLoss
from ajet.core.update.mini_batch_tokens import MiniBatchTokens, TokenNumbers
from ajet.core.update.settings import UpdateSettings

SMALLEST = math.log(1e-8)


def episode_log_product(tokens: MiniBatchTokens, settings: UpdateSettings) -> TokenNumbers:
    log_ratio_M = np.clip(tokens.log_ratio_M, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    sums_M = tokens.episode_sums(log_ratio_M)
    return {"log_product": np.clip(sums_M, SMALLEST, MAX_LOG_RATIO)}


def vespo(tokens: LossInputs, settings: UpdateSettings) -> TokenLoss:
    is_positive_M = tokens.advantages_M >= 0
    log_product_M = tokens.mini_batch["log_product"]
    ratio_M = log_product_M.exp()
    k_M = torch.where(is_positive_M, settings.vespo_k_pos, settings.vespo_k_neg)
    lambda_M = torch.where(is_positive_M, settings.vespo_lambda_pos, settings.vespo_lambda_neg)
    phi_M = (k_M * log_product_M + lambda_M * (1 - ratio_M)).exp()
    return TokenLoss(-phi_M * tokens.advantages_M * tokens.logprobs_M, ratio_M)


VESPO = PolicyLoss(vespo, episode_log_product, reads="episode")
