"""Is `ajet.utils` of AgentJet: what its tutorials import from there."""
