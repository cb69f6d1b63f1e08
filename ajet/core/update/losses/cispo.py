"""CISPO (MiniMax-M1, arXiv 2506.13585): only the weight is clipped, so every token has a gradient.

    -sg( clip(r, 1 - clip_low, 1 + clip_high) ) A log pi        sg: stop gradient

The paper bounds the ratio only from above, as `clip_low` 1 does; a smaller one is a floor: a token
that has become unlikely keeps the weight 1 - clip_low.
"""

from ajet.core.update.losses.token_loss import LossInputs, TokenLoss
from ajet.core.update.settings import UpdateSettings


def cispo(tokens: LossInputs, settings: UpdateSettings) -> TokenLoss:
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    ratio_M = tokens.ratio_M.detach()
    loss_M = -ratio_M.clamp(low, high) * tokens.advantages_M * tokens.logprobs_M
    return TokenLoss(loss_M, ratio_M, {"low": ratio_M < low, "high": ratio_M > high})
