"""Refuses AgentJet's swarm: clients that start episodes from outside the run."""

from typing import NoReturn

from ajet.core.config.agentjet_keys import NO_SWARM


def refuse(name: str) -> NoReturn:
    """Raises ImportError for a name of the swarm's, with what to write in its place."""
    raise ImportError(
        f"{name}: {NO_SWARM}: write what the client does in an episode as Workflow.execute, and "
        "start it with ajet --conf"
    )
