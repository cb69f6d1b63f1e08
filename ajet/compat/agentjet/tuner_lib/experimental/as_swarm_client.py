"""Provides an earlier path of AgentJet's `SwarmClient`."""

from ajet.compat.agentjet.tuner_lib.experimental.interchange_utils import SwarmThrottlePolicy
from ajet.compat.agentjet.tuner_lib.experimental.swarm_client import (
    SwarmClient,
    run_episodes_until_all_complete,
)

__all__ = ["SwarmClient", "SwarmThrottlePolicy", "run_episodes_until_all_complete"]
