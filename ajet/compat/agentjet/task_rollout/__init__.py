"""Provides AgentJet's `ajet.task_rollout`: models behind an API."""
