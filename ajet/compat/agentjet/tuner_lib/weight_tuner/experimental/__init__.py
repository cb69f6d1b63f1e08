"""Provides AgentJet's import path of its client of episodes."""
