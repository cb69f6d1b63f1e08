"""Is `ajet.schema` of AgentJet: tasks and outputs."""
