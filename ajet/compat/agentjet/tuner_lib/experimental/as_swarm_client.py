"""Provides an earlier path of AgentJet's `SwarmClient`."""

from ajet.compat.agentjet.tuner_lib.experimental.swarm_client import SwarmClient

__all__ = ["SwarmClient"]
