"""Policy losses: one file each, with the formula of its paper.

In: log-probabilities, advantages and, for losses over sequences, the ratios of the whole episode.
Out: a loss for each token. Ignored: how tokens are weighted and added up (loss.py).

A "sequence" is an EPISODE: all its trained tokens, on all its timelines. So the gradient depends
neither on the division into timelines nor on that into micro-batches.
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
"""The losses that read `LossInputs.episode_mean_M` or `episode_sum_M`."""
