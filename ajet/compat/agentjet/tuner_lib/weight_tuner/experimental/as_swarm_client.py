"""Stands for AgentJet's `ajet.tuner_lib.weight_tuner.experimental.as_swarm_client`, which is refused."""

from ajet.compat.agentjet.swarm import refuse

refuse("SwarmClient")
