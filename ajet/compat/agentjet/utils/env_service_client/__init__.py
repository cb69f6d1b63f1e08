"""Provides AgentJet's `ajet.utils.env_service_client`."""
