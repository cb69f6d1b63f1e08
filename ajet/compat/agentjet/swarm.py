"""Refuses names of AgentJet's swarm that have no counterpart."""

from typing import NoReturn

from ajet.core.config.agentjet_keys import NO_SWARM


def refuse(name: str) -> NoReturn:
    """Raises ImportError for a name of the swarm's, with what to write in its place."""
    raise ImportError(
        f"{name}: {NO_SWARM}: its tasks are those of the config, or the clients' own with "
        "ajet.serve.tasks=client"
    )
