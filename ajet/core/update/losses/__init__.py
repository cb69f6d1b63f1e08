"""Policy losses: one file each, with the formula of its paper.

In: log-probabilities, advantages and, for losses over sequences or batches, numbers of the whole
mini-batch. Out: a loss for each token. Ignored: how tokens are weighted and added up (loss.py).

A "sequence" is an EPISODE: all its trained tokens, on all its timelines. So the gradient depends
neither on the division into timelines nor on that into micro-batches.
"""

from ajet.core.update.losses.cispo import cispo
from ajet.core.update.losses.clip_cov import CLIP_COV
from ajet.core.update.losses.dppo import dppo_kl, dppo_tv
from ajet.core.update.losses.gmpo import GMPO
from ajet.core.update.losses.gpg import gpg
from ajet.core.update.losses.gspo import GSPO
from ajet.core.update.losses.kl_cov import KL_COV
from ajet.core.update.losses.ppo import ppo
from ajet.core.update.losses.sapo import sapo
from ajet.core.update.losses.token_loss import PolicyLoss
from ajet.core.update.losses.topr import TOPR
from ajet.core.update.losses.vespo import VESPO

LOSSES: dict[str, PolicyLoss] = {
    "ppo": PolicyLoss(ppo),
    "gspo": GSPO,
    "cispo": PolicyLoss(cispo),
    "gpg": PolicyLoss(gpg),
    "topr": TOPR,
    "sapo": PolicyLoss(sapo),
    "gmpo": GMPO,
    "vespo": VESPO,
    "dppo_tv": PolicyLoss(dppo_tv),
    "dppo_kl": PolicyLoss(dppo_kl),
    "clip_cov": CLIP_COV,
    "kl_cov": KL_COV,
}
"""The keys are the names for ``trainer_common.algorithm.policy_loss``."""
