"""Is `ajet.copilot` of AgentJet: runs that a script starts."""
