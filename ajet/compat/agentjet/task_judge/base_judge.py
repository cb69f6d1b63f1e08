"""Is `ajet.task_judge.base_judge` of AgentJet."""

from ajet.core.judge.judge import BaseJudge
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask

__all__ = ["BaseJudge", "WorkflowOutput", "WorkflowTask"]
