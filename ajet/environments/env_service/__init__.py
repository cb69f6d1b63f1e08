"""Serves any environment over HTTP: `python -m ajet.environments.env_service --env ID`."""
