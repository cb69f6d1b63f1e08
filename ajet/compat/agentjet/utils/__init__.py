"""Provides AgentJet's `ajet.utils`: what its tutorials import from there."""
