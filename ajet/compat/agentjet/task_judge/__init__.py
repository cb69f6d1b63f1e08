"""Is `ajet.task_judge` of AgentJet: judges."""
