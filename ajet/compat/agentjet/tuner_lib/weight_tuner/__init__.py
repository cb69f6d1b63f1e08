"""Provides AgentJet's `ajet.tuner_lib.weight_tuner`: names for annotations."""
