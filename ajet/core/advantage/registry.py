"""The advantage estimators by name, and the options of all of them."""

from dataclasses import dataclass

from ajet.core.advantage.estimator import Estimator
from ajet.core.advantage.gae import GAE, GaeOptions
from ajet.core.advantage.gdpo import GDPO, GdpoOptions
from ajet.core.advantage.gigpo import GIGPO, GigpoOptions
from ajet.core.advantage.grpo import GRPO, GrpoOptions
from ajet.core.advantage.opo import OPO
from ajet.core.advantage.pass_at_k import PASS_AT_K, PassAtKOptions
from ajet.core.advantage.reinforce import REINFORCE, REINFORCE_PLUS_PLUS
from ajet.core.advantage.reinforce_plus_plus_baseline import REINFORCE_PLUS_PLUS_BASELINE
from ajet.core.advantage.remax import REMAX
from ajet.core.advantage.rloo import RLOO
from ajet.core.advantage.step_reinforce import STEP_REINFORCE, StepReinforceOptions

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


@dataclass(frozen=True)
class AdvantageOptions(
    PassAtKOptions, GdpoOptions, StepReinforceOptions, GigpoOptions, GaeOptions, GrpoOptions
):
    """Holds the options of all estimators, which a function of the user's reads."""
