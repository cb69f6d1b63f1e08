"""Provides AgentJet's `ajet.copilot`: runs that a script starts."""
