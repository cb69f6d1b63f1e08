"""`single_turn_agent` asks the model once. It is the default agent."""

from __future__ import annotations

from typing import Any

from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.workflow.tuner import ModelTuner
from ajet.core.workflow.workflow import Workflow


class SingleTurnAgent(Workflow):
    """Asks the model once; the judge finds the reply in `metadata["final_answer"]`."""

    name = "single_turn_agent"
    reads = ("rollout.multi_turn.system_prompt",)

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        system_prompt = model_tuner.config.ajet.rollout.multi_turn.system_prompt
        reply = await model_tuner.chat(first_messages(workflow_task.task, system_prompt))
        return WorkflowOutput(metadata={"final_answer": reply["content"]})


def first_messages(task: Task, system_prompt: str | None) -> list[dict[str, Any]]:
    """Returns the messages of the first call. The config's system prompt is added only if the row
    has no system message."""
    messages = [dict(message) for message in task.init_messages]
    if system_prompt is not None and not any(
        message.get("role") == "system" for message in messages
    ):
        messages.insert(0, {"role": "system", "content": system_prompt})
    return [*messages, {"role": "user", "content": task.query_content}]
