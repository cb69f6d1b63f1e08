"""Provides AgentJet's `ajet.utils`: the parts that its tutorials import."""
