"""Provides AgentJet's `ajet.schema`: tasks and outputs."""
