"""Policy losses: one file each, with the formula of its paper, its settings and its row.

In: log-probabilities, advantages and, for losses over sequences or batches, numbers of the whole
mini-batch. Out: a loss for each token. Ignored: how tokens are weighted and added up
(update/loss.py). The config imports the registry: torch is imported inside the functions.

A "sequence" is an EPISODE: all its trained tokens, on all its timelines. So the gradient depends
neither on the division into timelines nor on that into micro-batches.
"""

from ajet.core.losses.registry import LOSSES, LossSettings
from ajet.core.losses.token_loss import LossInputs, PolicyLoss, TokenLoss

__all__ = ["LOSSES", "LossInputs", "LossSettings", "PolicyLoss", "TokenLoss"]
