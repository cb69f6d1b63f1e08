"""Provides AgentJet's `ajet.task_reader`: the base class of readers, and the reader of a client."""

from ajet.compat.agentjet.task_reader.router_task_reader import (
    HuggingFaceTaskReader,
    RouterTaskReader,
)
from ajet.compat.agentjet.task_reader.task_reader_base import BaseTaskReader

__all__ = ["BaseTaskReader", "HuggingFaceTaskReader", "RouterTaskReader"]
