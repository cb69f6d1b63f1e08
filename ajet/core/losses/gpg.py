"""GPG (arXiv 2504.02546): the plain policy gradient, -A log pi, without ratio and clip."""

from ajet.core.losses.token_loss import LossInputs, PolicyLoss, TokenLoss


def gpg(tokens: LossInputs, settings: object) -> TokenLoss:
    return TokenLoss(-tokens.advantages_M * tokens.logprobs_M, tokens.ratio_M.detach())


GPG = PolicyLoss(gpg)
