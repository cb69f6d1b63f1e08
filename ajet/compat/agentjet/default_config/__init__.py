"""Provides AgentJet's `ajet.default_config`: classes that configure a swarm client."""
