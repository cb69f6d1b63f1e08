"""PPO's clip (arXiv 1707.06347) with separate bounds (DAPO, arXiv 2503.14476), and the dual clip.

    -min( r A, clip(r, 1 - clip_low, 1 + clip_high) A )        r = pi / old of the token

With `dual_clip` c the loss of a negative advantage is at most -c A (arXiv 1912.09729): a ratio
above c has no gradient.
"""

import torch
from torch import Tensor

from ajet.core.update.losses.token_loss import LossInputs, TokenLoss
from ajet.core.update.settings import UpdateSettings


def ppo(tokens: LossInputs, settings: UpdateSettings) -> TokenLoss:
    ratio_M, advantages_M = tokens.ratio_M, tokens.advantages_M
    loss_M, cuts = clipped_surrogate_loss(ratio_M, advantages_M, settings)
    if settings.dual_clip is not None:
        negative_M = advantages_M < 0
        limit_M = torch.minimum(loss_M, -advantages_M * settings.dual_clip)
        loss_M = torch.where(negative_M, limit_M, loss_M)
        cuts["dual"] = negative_M & (ratio_M > settings.dual_clip)
    return TokenLoss(loss_M, ratio_M, cuts)


def clipped_surrogate_loss(
    ratio_M: Tensor, advantages_M: Tensor, settings: UpdateSettings
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the larger of the plain and the clipped loss, and where the clip acted."""
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    loss_M = torch.maximum(-advantages_M * ratio_M, -advantages_M * ratio_M.clamp(low, high))
    return loss_M, clipped_tokens(ratio_M, advantages_M, settings)


def clipped_tokens(
    ratio_M: Tensor, advantages_M: Tensor, settings: UpdateSettings
) -> dict[str, Tensor]:
    """Returns the tokens whose gradient the clip removes, by the bound that acts."""
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    return {
        "low": (advantages_M < 0) & (ratio_M < low),
        "high": (advantages_M > 0) & (ratio_M > high),
    }
