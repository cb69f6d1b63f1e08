"""GPG (arXiv 2504.02546): the plain policy gradient, -A log pi, without ratio and clip.

Not covered: the paper's own advantages (a group's rewards less their mean, over a constant), which
are an estimator's task.
"""

from ajet.core.update.losses.token_loss import LossInputs, TokenLoss
from ajet.core.update.settings import UpdateSettings


def gpg(tokens: LossInputs, settings: UpdateSettings) -> TokenLoss:
    return TokenLoss(-tokens.advantages_M * tokens.logprobs_M, tokens.ratio_M.detach())
