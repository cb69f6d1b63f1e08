"""Provides AgentJet's `ajet.tuner_lib.experimental.interchange_utils`: a client's share."""

from dataclasses import dataclass

__all__ = ["SwarmThrottlePolicy"]


@dataclass
class SwarmThrottlePolicy:
    """A client's share of a batch, which `SwarmClient` refuses: the server plans the groups."""

    expected_batch_size: int
    expected_num_repeat: int
    current_task_id: str
    ratio: float = 1.5
