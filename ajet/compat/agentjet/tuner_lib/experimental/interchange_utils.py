"""Provides AgentJet's `ajet.tuner_lib.experimental.interchange_utils`: a client's share."""

import math
from dataclasses import dataclass

__all__ = ["SwarmThrottlePolicy"]


@dataclass
class SwarmThrottlePolicy:
    """A client's share of a batch: it begins at most ceil(expected_batch_size · ratio) groups of a
    step. `expected_num_repeat` and `current_task_id` are the config's and the task's here."""

    expected_batch_size: int
    expected_num_repeat: int
    current_task_id: str
    ratio: float = 1.5

    @property
    def max_groups(self) -> int:
        return math.ceil(self.expected_batch_size * self.ratio)
