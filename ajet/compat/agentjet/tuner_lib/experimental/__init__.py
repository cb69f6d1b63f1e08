"""AgentJet's import path of the swarm, which is refused."""
