"""Policy losses: one file each, with the formula of its paper, its settings and its row.

In: log-probabilities, advantages and, for losses over episodes or batches, numbers of the whole
mini-batch. Out: a loss for each token; update/loss.py weights and adds them. A paper's "sequence"
is an EPISODE here: its trained tokens on all timelines. Functions import torch inside, because the
config imports the registry.
"""

from ajet.core.losses.registry import LOSSES, LossSettings, find_loss, loss_names
from ajet.core.losses.token_loss import LossInputs, PolicyLoss, TokenLoss

__all__ = [
    "LOSSES",
    "LossInputs",
    "LossSettings",
    "PolicyLoss",
    "TokenLoss",
    "find_loss",
    "loss_names",
]
