"""The loss of a token: one file each, the formula of its paper.

In: log-probabilities, advantages and, where the loss speaks of sequences, what is known of the
whole episode. Out: a loss for each token. Ignored: how tokens are weighted and added up (loss.py).

A "sequence" is an EPISODE: all its trained tokens, on all its timelines. So neither the cut into
timelines nor that into micro-batches changes a gradient.
"""

from collections.abc import Callable

from ajet.core.update.losses.cispo import cispo
from ajet.core.update.losses.gpg import gpg
from ajet.core.update.losses.gspo import gspo
from ajet.core.update.losses.ppo import ppo
from ajet.core.update.losses.sapo import sapo
from ajet.core.update.losses.token_loss import LossInputs, TokenLoss
from ajet.core.update.losses.topr import topr
from ajet.core.update.settings import UpdateSettings

PolicyLoss = Callable[[LossInputs, UpdateSettings], TokenLoss]

LOSSES: dict[str, PolicyLoss] = {
    "ppo": ppo,
    "gspo": gspo,
    "cispo": cispo,
    "gpg": gpg,
    "topr": topr,
    "sapo": sapo,
}
EPISODE_LEVEL_LOSSES = frozenset({"gspo", "topr"})
"""Losses that read `LossInputs.episode_…`."""
