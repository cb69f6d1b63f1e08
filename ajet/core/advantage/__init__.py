"""Advantage estimators: pure functions from the rewards of a batch to one number per sampled token.

In: the `EpisodeCredit`s of each judged group. Out: episode id -> one array for each turn (empty
where the turn is not trained); invalid episodes are absent.
"""

from ajet.core.advantage.credit import AdvantageOptions
from ajet.core.advantage.estimation import EstimatorSettings, estimate
from ajet.core.advantage.estimator import Estimator
from ajet.core.advantage.registry import ESTIMATORS, estimator_names, find_estimator
from ajet.core.advantage.shaping import RewardShaping

__all__ = [
    "ESTIMATORS",
    "AdvantageOptions",
    "Estimator",
    "EstimatorSettings",
    "RewardShaping",
    "estimate",
    "estimator_names",
    "find_estimator",
]
