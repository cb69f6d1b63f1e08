"""Is `ajet.task_rollout` of AgentJet: models behind an API."""
