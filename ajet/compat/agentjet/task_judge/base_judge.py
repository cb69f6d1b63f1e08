"""Provides AgentJet's `ajet.task_judge.base_judge`."""

from ajet.core.judge.judge import BaseJudge
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask

__all__ = ["BaseJudge", "WorkflowOutput", "WorkflowTask"]
