"""CISPO (MiniMax-M1, arXiv 2506.13585): only the weight is clipped, so every token has a gradient.

    -sg( clip(r, 1 - clip_low, 1 + clip_high) ) A log pi        sg: stop gradient

The paper bounds the ratio only from above, as `clip_low` 1 does; a smaller one is a floor: a token
that has become unlikely keeps the weight 1 - clip_low.
"""

from collections.abc import Iterator

from ajet.core.losses.ppo import NARROW, ClipBounds
from ajet.core.losses.token_loss import LossInputs, PolicyLoss, TokenLoss


def cispo(tokens: LossInputs, settings: ClipBounds) -> TokenLoss:
    # The detached ratio only weights grad log pi, so a clipped token keeps its gradient.
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    ratio_M = tokens.ratio_M.detach()
    loss_M = -ratio_M.clamp(low, high) * tokens.advantages_M * tokens.logprobs_M
    return TokenLoss(loss_M, ratio_M, {"low": ratio_M < low, "high": ratio_M > high})


def unusual_settings(settings: ClipBounds) -> Iterator[str]:
    if settings.clip_low < 0.9:
        yield (
            f"with clip_low={settings.clip_low:g}: its paper (arXiv 2506.13585) bounds the ratio "
            "from above alone; set clip_low=1"
        )
    if settings.clip_high < NARROW:
        yield (
            f"with clip_high={settings.clip_high:g}: a token that became likelier weighs no more; "
            "verl has 0.2"
        )


CISPO = PolicyLoss(cispo, settings=ClipBounds, warnings=unusual_settings)
