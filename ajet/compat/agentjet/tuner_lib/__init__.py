"""Provides AgentJet's `ajet.tuner_lib`: names for annotations."""
