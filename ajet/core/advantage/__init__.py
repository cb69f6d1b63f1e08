"""Rewards of a group in, one number for each sampled token out. Pure functions, one file each.

In: a judged `Group`. Out: episode id -> one array for each turn (empty where the turn is not
trained); invalid episodes are absent. Ignored: tokens' text, the policy, the batch's layout.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ajet.core.advantage.grpo import grpo
from ajet.core.trajectory.trajectory import Group

GroupAdvantages = dict[str, tuple[NDArray[np.float32], ...]]


class Estimator(Protocol):
    """A pure function of one group."""

    def __call__(self, group: Group, *, normalize_std: bool = True) -> GroupAdvantages: ...


ESTIMATORS: dict[str, Estimator] = {"grpo": grpo}
"""By the name in ``trainer_common.algorithm.adv_estimator``."""

__all__ = ["ESTIMATORS", "Estimator", "GroupAdvantages", "grpo"]
