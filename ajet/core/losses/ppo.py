"""PPO's clip (arXiv 1707.06347) with separate bounds (DAPO, arXiv 2503.14476), and the dual clip.

    -min( r A, clip(r, 1 - clip_low, 1 + clip_high) A )        r = pi / old of the token

With `dual_clip` c the loss of a negative advantage is at most -c A (arXiv 1912.09729): there is no
gradient where the ratio is above c.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ajet.core.losses.token_loss import LossInputs, PolicyLoss, TokenLoss

if TYPE_CHECKING:
    from torch import Tensor

NARROW = 0.01
"""Bounds of a token's ratio below which nearly every token is clipped."""


@dataclass(frozen=True)
class ClipBounds:
    """The bounds of PPO's clip; other losses bound other quantities by them."""

    clip_low: Annotated[
        float,
        Field(
            gt=0, le=1, description="The ratio is clipped below 1 - clip_low; 1 has no lower bound."
        ),
    ] = 0.2
    clip_high: Annotated[
        float, Field(ge=0, description="The ratio is clipped above 1 + clip_high.")
    ] = 0.28

    @property
    def bounds_text(self) -> str:
        return f"with clip_low={self.clip_low:g}, clip_high={self.clip_high:g}"


@dataclass(frozen=True)
class PpoSettings(ClipBounds):
    dual_clip: Annotated[
        float | None,
        Field(gt=1, description="Bound of the loss for negative advantages; null has none."),
    ] = None


def ppo(tokens: LossInputs, settings: PpoSettings) -> TokenLoss:
    import torch

    ratio_M, advantages_M = tokens.ratio_M, tokens.advantages_M
    loss_M, cuts = clipped_surrogate_loss(ratio_M, advantages_M, settings)
    if settings.dual_clip is not None:
        negative_M = advantages_M < 0
        # For A < 0 the clip has no upper bound: r A has no limit as r grows.
        limit_M = torch.minimum(loss_M, -advantages_M * settings.dual_clip)
        loss_M = torch.where(negative_M, limit_M, loss_M)
        cuts["dual"] = negative_M & (ratio_M > settings.dual_clip)
    return TokenLoss(loss_M, ratio_M, cuts)


def clipped_surrogate_loss(
    ratio_M: Tensor, advantages_M: Tensor, settings: ClipBounds
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the larger of the plain and the clipped loss, and where the clip acted."""
    import torch

    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    loss_M = torch.maximum(-advantages_M * ratio_M, -advantages_M * ratio_M.clamp(low, high))
    return loss_M, clipped_tokens(ratio_M, advantages_M, settings)


def clipped_tokens(
    ratio_M: Tensor, advantages_M: Tensor, settings: ClipBounds
) -> dict[str, Tensor]:
    """Returns the tokens whose gradient the clip removes, by the bound that acts."""
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    return {
        "low": (advantages_M < 0) & (ratio_M < low),
        "high": (advantages_M > 0) & (ratio_M > high),
    }


def unusual_bounds(settings: ClipBounds) -> Iterator[str]:
    low, high = settings.clip_low, settings.clip_high
    papers = "0.2 and 0.2 (PPO, arXiv 1707.06347) or 0.2 and 0.28 (DAPO, arXiv 2503.14476)"
    if max(low, high) < NARROW:
        yield (
            f"{settings.bounds_text}: a token's ratio leaves such bounds at once; papers have "
            f"{papers}"
        )
    if low > 0.5 or high > 1:
        yield f"{settings.bounds_text}: hardly any token is clipped; papers have {papers}"


def unusual_settings(settings: PpoSettings) -> Iterator[str]:
    yield from unusual_bounds(settings)
    if settings.dual_clip is not None and settings.dual_clip <= 1 + settings.clip_high:
        yield (
            f"with dual_clip={settings.dual_clip:g}, clip_high={settings.clip_high:g}: the dual "
            "clip is not above 1 + clip_high; the paper has 3 (arXiv 1912.09729)"
        )


PPO = PolicyLoss(ppo, settings=PpoSettings, warnings=unusual_settings)
