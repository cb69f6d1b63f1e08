"""The base class of the user's agents: a workflow runs one task and returns its output."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig
    from ajet.core.workflow.tuner import ModelTuner


class Workflow:
    """Subclass this and write `execute`. One object is made for each episode, so `self` is free.

    `trainable_targets` limits training to these agent names or target tags (None: every agent).
    """

    name: ClassVar[str] = "workflow"
    trainable_targets: ClassVar[list[str] | None] = None

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        """Runs the agent on `workflow_task.task`, with `model_tuner` as its model."""
        raise NotImplementedError(f"{type(self).__name__} does not define execute()")

    @classmethod
    def check_config(cls, config: AjetConfig) -> None:
        """Raises a `ConfigError` for what would fail in every episode; called before a launch."""
