"""KL-Cov (arXiv 2505.22617): the plain policy gradient, with a penalty on the tokens whose
log-probability and advantage go together most, because these lower the entropy most.

    -r A + kl_cov_coef |log r|    of the `cov_share` of the mini-batch's trained tokens with the
                                  largest covariance (rounded down, at least 1; clip_cov.py)
    -r A                          of the others                   r = pi / old of the token
"""

import numpy as np
import torch

from ajet.core.update.losses.clip_cov import choose, covariances
from ajet.core.update.losses.token_loss import LossInputs, PolicyLoss, TokenLoss
from ajet.core.update.mini_batch_tokens import MiniBatchTokens, TokenNumbers
from ajet.core.update.settings import UpdateSettings


def largest_tokens(tokens: MiniBatchTokens, settings: UpdateSettings) -> TokenNumbers:
    largest_first = np.argsort(-covariances(tokens), kind="stable")
    return choose(largest_first, len(largest_first), settings)


def kl_cov(tokens: LossInputs, settings: UpdateSettings) -> TokenLoss:
    ratio_M = tokens.ratio_M
    chosen_M = tokens.mini_batch["chosen"] != 0
    penalty_M = settings.kl_cov_coef * (tokens.logprobs_M - tokens.old_M).abs()
    loss_M = -ratio_M * tokens.advantages_M + torch.where(chosen_M, penalty_M, 0.0)
    return TokenLoss(loss_M, ratio_M, {"cov": chosen_M})


KL_COV = PolicyLoss(kl_cov, largest_tokens, reads="mini_batch")
