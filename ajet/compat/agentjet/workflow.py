"""Provides AgentJet's `ajet.workflow`."""

from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.workflow.tuner import AjetTuner
from ajet.core.workflow.workflow import Workflow

__all__ = ["AjetTuner", "Workflow", "WorkflowOutput", "WorkflowTask"]
