"""The policy losses by name, and the settings of all of them."""

from dataclasses import dataclass

from ajet.core.losses.cispo import CISPO
from ajet.core.losses.clip_cov import CLIP_COV, ClipCovSettings
from ajet.core.losses.dppo import DPPO_KL, DPPO_TV, DppoSettings
from ajet.core.losses.gmpo import GMPO
from ajet.core.losses.gpg import GPG
from ajet.core.losses.gspo import GSPO
from ajet.core.losses.kl_cov import KL_COV, KlCovSettings
from ajet.core.losses.ppo import PPO, PpoSettings
from ajet.core.losses.sapo import SAPO, SapoSettings
from ajet.core.losses.token_loss import PolicyLoss
from ajet.core.losses.topr import TOPR
from ajet.core.losses.vespo import VESPO, VespoSettings
from ajet.core.user_code.plugins import find_row, plugins

LOSSES: dict[str, PolicyLoss] = {
    "ppo": PPO,
    "gspo": GSPO,
    "cispo": CISPO,
    "gpg": GPG,
    "topr": TOPR,
    "sapo": SAPO,
    "gmpo": GMPO,
    "vespo": VESPO,
    "dppo_tv": DPPO_TV,
    "dppo_kl": DPPO_KL,
    "clip_cov": CLIP_COV,
    "kl_cov": KL_COV,
}
"""The keys are the names for ``trainer_common.algorithm.policy_loss``."""


def loss_names() -> list[str]:
    """Returns the names above and those that packages register as `ajet.losses`."""
    return [*LOSSES, *plugins("ajet.losses")]


def find_loss(name: str) -> PolicyLoss | None:
    """Returns the loss of this name; None for a function of the user's."""
    return find_row(LOSSES, "ajet.losses", name, PolicyLoss)


@dataclass(frozen=True)
class LossSettings(
    PpoSettings, SapoSettings, VespoSettings, DppoSettings, ClipCovSettings, KlCovSettings
):
    """The settings of all losses, which a user's function reads."""
