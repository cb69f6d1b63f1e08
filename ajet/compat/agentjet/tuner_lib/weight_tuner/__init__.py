"""Is `ajet.tuner_lib.weight_tuner` of AgentJet: names for annotations."""
