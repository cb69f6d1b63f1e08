"""DPPO (arXiv 2602.04879): a token is left out where the policy has moved too far in its direction,
measured by a divergence of the two choices "this token" and "any other".

    -sg( keep * min(r, dppo_max_ratio) ) A log pi        r = pi / old of the token

    dppo_tv    keep: pi - old <= clip_high where A > 0, old - pi <= clip_low elsewhere
    dppo_kl    keep: D <= clip_high or pi <= old where A > 0, D <= clip_low or pi >= old elsewhere
               D = old log(old / pi) + (1 - old) log((1 - old) / (1 - pi))

A ratio's clip acts on rare tokens first: from 0.001 to 0.002 the ratio is 2, the difference 0.001.
"""

import torch
from torch import Tensor

from ajet.core.update.losses.token_loss import LossInputs, TokenLoss
from ajet.core.update.settings import UpdateSettings

EPSILON = 1e-8


def dppo_tv(tokens: LossInputs, settings: UpdateSettings) -> TokenLoss:
    moved_M = tokens.logprobs_M.detach().exp() - tokens.old_M.exp()
    too_high_M, too_low_M = moved_M > settings.clip_high, moved_M < -settings.clip_low
    return _loss(tokens, too_high_M, too_low_M, settings)


def dppo_kl(tokens: LossInputs, settings: UpdateSettings) -> TokenLoss:
    logprobs_M = tokens.logprobs_M.detach()
    new_M, old_M = logprobs_M.exp(), tokens.old_M.exp()
    others_M = (1 - old_M) * ((1 - old_M + EPSILON) / (1 - new_M + EPSILON)).log()
    divergence_M = old_M * (tokens.old_M - logprobs_M) + others_M
    too_high_M = (divergence_M > settings.clip_high) & (new_M > old_M)
    too_low_M = (divergence_M > settings.clip_low) & (new_M < old_M)
    return _loss(tokens, too_high_M, too_low_M, settings)


def _loss(
    tokens: LossInputs, too_high_M: Tensor, too_low_M: Tensor, settings: UpdateSettings
) -> TokenLoss:
    is_positive_M = tokens.advantages_M > 0
    ratio_M = tokens.ratio_M.detach()
    high_M, low_M = is_positive_M & too_high_M, ~is_positive_M & too_low_M
    weight_M = torch.where(high_M | low_M, 0.0, ratio_M.clamp(max=settings.dppo_max_ratio))
    loss_M = -weight_M * tokens.advantages_M * tokens.logprobs_M
    return TokenLoss(loss_M, ratio_M, {"low": low_M, "high": high_M})
