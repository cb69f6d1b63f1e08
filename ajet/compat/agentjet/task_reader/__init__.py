"""Provides AgentJet's `ajet.task_reader`: the base class of the user's own readers, and the reader
of a swarm client."""

from ajet.compat.agentjet.task_reader.router_task_reader import RouterTaskReader
from ajet.compat.agentjet.task_reader.task_reader_base import BaseTaskReader

__all__ = ["BaseTaskReader", "RouterTaskReader"]
