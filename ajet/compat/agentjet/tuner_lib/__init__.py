"""Is `ajet.tuner_lib` of AgentJet: names for annotations."""
