"""The agent of long_tails.py: a calculator's assistant whose tool takes a log-normal time."""

import asyncio
import random

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask
from ajet.tools import PYTHON_TOOL
from benchmarks.serve_learning_agent import Message, answer

MEDIAN_S = 0.5


class SlowAssistant(Workflow):
    """Waits before it calls the model with a tool's result, for a time that its id decides."""

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        async def chat(messages: list[Message]) -> Message:
            if messages[-1]["role"] == "tool" and workflow_task.mode == "train":
                rng = random.Random(workflow_task.episode_id)
                await asyncio.sleep(MEDIAN_S * rng.lognormvariate(0.0, 1.0))
            return await model_tuner.chat(messages, [PYTHON_TOOL])

        said = await answer(chat, workflow_task.task.main_query)
        return WorkflowOutput(metadata={"final_answer": said})
