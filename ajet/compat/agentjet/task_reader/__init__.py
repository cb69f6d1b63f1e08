"""Provides AgentJet's `ajet.task_reader`: the base class of the user's own readers."""

from typing import NoReturn

from ajet.compat.agentjet.swarm import refuse
from ajet.compat.agentjet.task_reader.task_reader_base import BaseTaskReader

__all__ = ["BaseTaskReader"]


def __getattr__(name: str) -> NoReturn:
    if name == "RouterTaskReader":
        refuse(name)
    raise AttributeError(f"module 'ajet.task_reader' has no attribute {name!r}")
