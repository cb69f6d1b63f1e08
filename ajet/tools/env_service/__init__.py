"""Any environment of the registry behind HTTP: `python -m ajet.tools.env_service --env ID`."""
