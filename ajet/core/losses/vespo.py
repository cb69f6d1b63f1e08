"""VESPO (arXiv 2602.10693): a smooth weight of the episode's whole ratio instead of a clip.

    -sg( phi(R) ) A log pi      phi(R) = R^k exp( lambda (1 - R) ),  R = product of pi / old over
                                         the episode's tokens, at least 1e-8
    k, lambda: vespo_k_pos and vespo_lambda_pos where A >= 0, else vespo_k_neg and vespo_lambda_neg

phi(1) is 1; phi falls to 0 on both sides of its maximum, at R = k / lambda. R is policy over
sampler, so `old_logprobs` is the sampler's. The paper aggregates over tokens (`token-mean`).
"""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from ajet.core.losses.mini_batch_tokens import MiniBatchTokens, TokenNumbers
from ajet.core.losses.token_loss import MAX_LOG_RATIO, LossInputs, PolicyLoss, TokenLoss

SMALLEST = math.log(1e-8)


@dataclass(frozen=True)
class VespoSettings:
    vespo_k_pos: Annotated[float, Field(ge=0, description="vespo: exponent where A >= 0.")] = 2.0
    vespo_k_neg: Annotated[float, Field(ge=0, description="vespo: exponent where A < 0.")] = 3.0
    vespo_lambda_pos: Annotated[float, Field(gt=0, description="vespo: decay where A >= 0.")] = 3.0
    vespo_lambda_neg: Annotated[float, Field(gt=0, description="vespo: decay where A < 0.")] = 2.0


def episode_log_product(tokens: MiniBatchTokens, settings: VespoSettings) -> TokenNumbers:
    # Token by token first, so that one token far off does not decide the whole product.
    log_ratio_M = np.clip(tokens.log_ratio_M, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    sums_M = tokens.episode_sums(log_ratio_M)
    return {"log_product": np.clip(sums_M, SMALLEST, MAX_LOG_RATIO)}


def vespo(tokens: LossInputs, settings: VespoSettings) -> TokenLoss:
    import torch

    is_positive_M = tokens.advantages_M >= 0
    log_product_M = tokens.mini_batch["log_product"]
    ratio_M = log_product_M.exp()
    k_M = torch.where(is_positive_M, settings.vespo_k_pos, settings.vespo_k_neg)
    lambda_M = torch.where(is_positive_M, settings.vespo_lambda_pos, settings.vespo_lambda_neg)
    # exp of the logarithm of phi: R^k alone may overflow.
    phi_M = (k_M * log_product_M + lambda_M * (1 - ratio_M)).exp()
    return TokenLoss(-phi_M * tokens.advantages_M * tokens.logprobs_M, ratio_M)


VESPO = PolicyLoss(
    vespo, episode_log_product, "episode", settings=VespoSettings, weighs_by_sampler=True
)
