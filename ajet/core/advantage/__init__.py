"""Advantage estimators: pure functions from the rewards of a batch to one number per sampled token.

In: `credit_of` each judged `Group`. Out: episode id -> one array for each turn (empty where the
turn is not trained); invalid episodes are absent. Ignored: tokens' text, the policy, the batch's
layout.
"""

from ajet.core.advantage.credit import AdvantageOptions, credit_of
from ajet.core.advantage.estimate import ESTIMATORS, EstimatorSettings, estimate
from ajet.core.advantage.shaping import RewardShaping

__all__ = [
    "ESTIMATORS",
    "AdvantageOptions",
    "EstimatorSettings",
    "RewardShaping",
    "credit_of",
    "estimate",
]
