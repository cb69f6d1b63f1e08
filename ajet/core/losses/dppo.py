"""DPPO (arXiv 2602.04879): a token is left out where the policy has moved too far in the direction
of its advantage, measured by a divergence of the two outcomes "this token" and "any other".

    -sg( keep * min(r, dppo_max_ratio) ) A log pi        r = pi / old of the token

    dppo_tv    keep: pi - old <= clip_high where A > 0, old - pi <= clip_low elsewhere
    dppo_kl    keep: D <= clip_high or pi <= old where A > 0, D <= clip_low or pi >= old elsewhere
               D = old log(old / pi) + (1 - old) log((1 - old) / (1 - pi))

A ratio's clip acts on rare tokens first: from 0.001 to 0.002 the ratio is 2, the difference 0.001.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ajet.core.losses.ppo import ClipBounds
from ajet.core.losses.token_loss import LossInputs, PolicyLoss, TokenLoss

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-8


@dataclass(frozen=True)
class DppoSettings(ClipBounds):
    dppo_max_ratio: Annotated[
        float, Field(gt=0, description="dppo_tv, dppo_kl: largest ratio that weighs a token.")
    ] = 20.0


def dppo_tv(tokens: LossInputs, settings: DppoSettings) -> TokenLoss:
    moved_M = tokens.logprobs_M.detach().exp() - tokens.old_M.exp()
    too_high_M, too_low_M = moved_M > settings.clip_high, moved_M < -settings.clip_low
    return _loss(tokens, too_high_M, too_low_M, settings)


def dppo_kl(tokens: LossInputs, settings: DppoSettings) -> TokenLoss:
    logprobs_M = tokens.logprobs_M.detach()
    new_M, old_M = logprobs_M.exp(), tokens.old_M.exp()
    # D = KL(old || pi) of a Bernoulli variable. EPSILON: a probability may round to 1.
    rest_M = (1 - old_M) * ((1 - old_M + EPSILON) / (1 - new_M + EPSILON)).log()
    divergence_M = old_M * (tokens.old_M - logprobs_M) + rest_M
    too_high_M = (divergence_M > settings.clip_high) & (new_M > old_M)
    too_low_M = (divergence_M > settings.clip_low) & (new_M < old_M)
    return _loss(tokens, too_high_M, too_low_M, settings)


def _loss(
    tokens: LossInputs, too_high_M: Tensor, too_low_M: Tensor, settings: DppoSettings
) -> TokenLoss:
    import torch

    is_positive_M = tokens.advantages_M > 0
    ratio_M = tokens.ratio_M.detach()
    high_M, low_M = is_positive_M & too_high_M, ~is_positive_M & too_low_M
    weight_M = torch.where(high_M | low_M, 0.0, ratio_M.clamp(max=settings.dppo_max_ratio))
    loss_M = -weight_M * tokens.advantages_M * tokens.logprobs_M
    return TokenLoss(loss_M, ratio_M, {"low": low_M, "high": high_M})


def unusual_settings(settings: DppoSettings, widest: float) -> Iterator[str]:
    """Warns of bounds that hardly any token reaches. A difference of probabilities is at most 1,
    and the divergence grows with its square."""
    if max(settings.clip_low, settings.clip_high) > widest:
        yield (
            f"{settings.bounds_text}: they bound a divergence of probabilities and not a ratio "
            f"(arXiv 2602.04879): above {widest:g} hardly any token is left out"
        )


DPPO_TV = PolicyLoss(dppo_tv, settings=DppoSettings, warnings=partial(unusual_settings, widest=0.5))
DPPO_KL = PolicyLoss(dppo_kl, settings=DppoSettings, warnings=partial(unusual_settings, widest=0.2))
