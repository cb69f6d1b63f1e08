"""The advantage estimators by name."""

from ajet.core.advantage.estimator import Estimator
from ajet.core.advantage.gae import GAE
from ajet.core.advantage.gdpo import GDPO
from ajet.core.advantage.gigpo import GIGPO
from ajet.core.advantage.grpo import GRPO
from ajet.core.advantage.opo import OPO
from ajet.core.advantage.pass_at_k import PASS_AT_K
from ajet.core.advantage.reinforce import REINFORCE, REINFORCE_PLUS_PLUS
from ajet.core.advantage.reinforce_plus_plus_baseline import REINFORCE_PLUS_PLUS_BASELINE
from ajet.core.advantage.remax import REMAX
from ajet.core.advantage.rloo import RLOO
from ajet.core.advantage.step_reinforce import STEP_REINFORCE
from ajet.core.user_code.plugins import find_row, plugins

ESTIMATORS: dict[str, Estimator] = {
    "grpo": GRPO,
    "rloo": RLOO,
    "reinforce": REINFORCE,
    "reinforce_plus_plus": REINFORCE_PLUS_PLUS,
    "reinforce_plus_plus_baseline": REINFORCE_PLUS_PLUS_BASELINE,
    "remax": REMAX,
    "opo": OPO,
    "gae": GAE,
    "gigpo": GIGPO,
    "step_reinforce": STEP_REINFORCE,
    "starpo": GRPO,
    "gdpo": GDPO,
    "pass_at_k": PASS_AT_K,
}
"""The keys are the names for ``trainer_common.algorithm.adv_estimator``."""


def estimator_names() -> list[str]:
    """Returns the names above and those that packages register as `ajet.estimators`."""
    return [*ESTIMATORS, *plugins("ajet.estimators")]


def find_estimator(name: str) -> Estimator | None:
    """Returns the estimator of this name; None for a function of the user's."""
    return find_row(ESTIMATORS, "ajet.estimators", name, Estimator)
