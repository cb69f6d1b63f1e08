"""Provides AgentJet's `ajet.task_judge`: judges."""
