"""Stands for AgentJet's `ajet.tuner_lib.experimental.as_swarm_client`, which is refused."""

from ajet.compat.agentjet.swarm import refuse

refuse("SwarmClient")
