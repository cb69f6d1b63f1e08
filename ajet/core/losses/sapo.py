"""SAPO (arXiv 2511.20347): a soft gate instead of the clip.

    -f(r) A,   f(r) = sigmoid( tau (r - 1) ) * 4 / tau        tau: sapo_tau_pos where A > 0,
                                                              else sapo_tau_neg
At r = 1 the gradient is the plain one; it fades on both sides, faster where tau is larger. The
paper aggregates with `seq-mean-token-mean`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from ajet.core.losses.token_loss import LossInputs, PolicyLoss, TokenLoss


@dataclass(frozen=True)
class SapoSettings:
    sapo_tau_pos: Annotated[float, Field(gt=0, description="sapo: slope where A > 0.")] = 1.0
    sapo_tau_neg: Annotated[float, Field(gt=0, description="sapo: slope where A < 0.")] = 1.05


def sapo(tokens: LossInputs, settings: SapoSettings) -> TokenLoss:
    import torch

    ratio_M, advantages_M = tokens.ratio_M, tokens.advantages_M
    tau_M = torch.where(advantages_M > 0, settings.sapo_tau_pos, settings.sapo_tau_neg)
    gate_M = torch.sigmoid(tau_M * (ratio_M - 1)) * 4 / tau_M
    return TokenLoss(-gate_M * advantages_M, ratio_M)


def unusual_settings(settings: SapoSettings) -> Iterator[str]:
    pos, neg = settings.sapo_tau_pos, settings.sapo_tau_neg
    if neg < pos:
        yield (
            f"with sapo_tau_pos={pos:g}, sapo_tau_neg={neg:g}: the gate closes later for negative "
            "advantages; in the paper it closes earlier: 1 and 1.05 (arXiv 2511.20347)"
        )


SAPO = PolicyLoss(sapo, settings=SapoSettings, warnings=unusual_settings)
