"""Serves any environment of the registry over HTTP: `python -m ajet.environments.env_service --env ID`."""
