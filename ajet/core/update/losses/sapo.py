"""SAPO (arXiv 2511.20347): a soft gate instead of the clip.

    -f(r) A,   f(r) = sigmoid( tau (r - 1) ) * 4 / tau        tau: sapo_tau_pos where A > 0,
                                                              else sapo_tau_neg
At r = 1 the gradient is the plain one; it fades on both sides, faster where tau is larger. The
paper aggregates with `seq-mean-token-mean`.
"""

import torch

from ajet.core.update.losses.token_loss import LossInputs, TokenLoss
from ajet.core.update.settings import UpdateSettings


def sapo(tokens: LossInputs, settings: UpdateSettings) -> TokenLoss:
    ratio_M, advantages_M = tokens.ratio_M, tokens.advantages_M
    tau_M = torch.where(advantages_M > 0, settings.sapo_tau_pos, settings.sapo_tau_neg)
    gate_M = torch.sigmoid(tau_M * (ratio_M - 1)) * 4 / tau_M
    return TokenLoss(-gate_M * advantages_M, ratio_M)
