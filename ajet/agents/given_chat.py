"""`GivenChat` plays a row of chat messages: its assistant messages are given, not sampled.

It is the agent of a supervised run and of one on preferences (`ajet.kind`), whatever
`ajet.rollout.user_workflow` names.
"""

from __future__ import annotations

from ajet.core.task.chat_rows import is_trained
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.workflow.tuner import ModelTuner
from ajet.core.workflow.workflow import Workflow

OWN_FIELDS = ("weight", "token_ids")
"""The fields that a row adds to a message and that no template reads."""


class GivenChat(Workflow):
    """Gives each reply of a row in its context. The first episode of a pair plays the chosen
    conversation, the second the rejected one. The reward is 1 for a reply that the row calls good,
    else 0."""

    name = "given_chat"
    reads = ()

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        metadata = workflow_task.task.metadata
        row_messages, is_good = workflow_task.task.init_messages, metadata.get("label", False)
        if "rejected" in metadata:
            is_good = workflow_task.rollout_index == 0
            row_messages = row_messages if is_good else metadata["rejected"]
        messages = [
            {key: value for key, value in message.items() if key not in OWN_FIELDS}
            for message in row_messages
        ]
        for index, message in enumerate(row_messages):
            token_ids = message.get("token_ids")
            if is_trained(message) or (message["role"] == "assistant" and token_ids is not None):
                await model_tuner.give(
                    messages[:index],
                    messages[index],
                    metadata["tools"],
                    token_ids=token_ids,
                    vocabulary=metadata["vocabulary"],
                    is_trained=is_trained(message),
                )
        return WorkflowOutput(reward=float(is_good), is_success=is_good)
