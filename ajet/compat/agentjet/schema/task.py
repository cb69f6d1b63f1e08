"""Provides AgentJet's `ajet.schema.task`."""

from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask

__all__ = ["Task", "WorkflowOutput", "WorkflowTask"]
