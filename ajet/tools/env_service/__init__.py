"""Serves any environment of the registry over HTTP: `python -m ajet.tools.env_service --env ID`."""
