"""Stands for an import path of AgentJet's swarm, which is refused."""

from ajet.compat.agentjet.swarm import refuse

refuse("SwarmClient")
