"""KL-Cov (arXiv 2505.22617): the plain policy gradient, with a penalty on the tokens whose
log-probability and advantage go together most, because these lower the entropy most.

    -r A + kl_cov_coef |log r|    of the `cov_share` of the mini-batch's trained tokens with the
                                  largest covariance (rounded down, at least 1; clip_cov.py)
    -r A                          of the others                   r = pi / old of the token
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from ajet.core.losses.clip_cov import CovShare, choose, covariances
from ajet.core.losses.mini_batch_tokens import MiniBatchTokens, TokenNumbers
from ajet.core.losses.token_loss import LossInputs, PolicyLoss, TokenLoss


@dataclass(frozen=True)
class KlCovSettings(CovShare):
    kl_cov_coef: Annotated[
        float, Field(ge=0, description="kl_cov: weight of |log ratio| of the chosen tokens.")
    ] = 1.0


def largest_tokens(tokens: MiniBatchTokens, settings: KlCovSettings) -> TokenNumbers:
    largest_first = np.argsort(-covariances(tokens), kind="stable")
    return choose(largest_first, len(largest_first), settings)


def kl_cov(tokens: LossInputs, settings: KlCovSettings) -> TokenLoss:
    import torch

    ratio_M = tokens.ratio_M
    chosen_M = tokens.mini_batch["chosen"] != 0
    penalty_M = settings.kl_cov_coef * (tokens.logprobs_M - tokens.old_M).abs()
    loss_M = -ratio_M * tokens.advantages_M + torch.where(chosen_M, penalty_M, 0.0)
    return TokenLoss(loss_M, ratio_M, {"cov": chosen_M})


KL_COV = PolicyLoss(kl_cov, largest_tokens, scope="mini_batch", settings=KlCovSettings)
