"""TOPR (arXiv 2503.14286): full positive advantages, negative ones weighted by the episode's ratio.

    A >= 0    -A log pi
    A < 0     -sg( min(R, 1) ) A log pi        R = product of pi / old over the episode's tokens

Episodes that the policy has already made unlikely are not pushed down further; those with positive
advantages have full weight, however unlikely. The paper sums over an episode: `seq-mean-token-sum`.
"""

from ajet.core.losses.mini_batch_tokens import MiniBatchTokens, TokenNumbers
from ajet.core.losses.token_loss import MAX_LOG_RATIO, LossInputs, PolicyLoss, TokenLoss


def episode_log_product(tokens: MiniBatchTokens, settings: object) -> TokenNumbers:
    return {"log_product": tokens.episode_sums(tokens.log_ratio_M)}


def topr(tokens: LossInputs, settings: object) -> TokenLoss:
    import torch

    log_product_M = tokens.mini_batch["log_product"]
    negative_M = tokens.advantages_M < 0
    taper_M = log_product_M.clamp(max=0.0).exp()
    weight_M = torch.where(negative_M, taper_M, torch.ones_like(taper_M))
    loss_M = -weight_M * tokens.advantages_M * tokens.logprobs_M
    ratio_M = log_product_M.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return TokenLoss(loss_M, ratio_M, {"high": negative_M & (ratio_M > 1)})


TOPR = PolicyLoss(topr, episode_log_product, scope="episode")
