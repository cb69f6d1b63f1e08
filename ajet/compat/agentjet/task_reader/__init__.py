"""Provides AgentJet's `ajet.task_reader`: the base class of the user's own readers."""

from ajet.compat.agentjet.task_reader.task_reader_base import BaseTaskReader

__all__ = ["BaseTaskReader"]
