"""The agent and the judge of plan_accuracy.py: prompts and replies of known lengths."""

import random
import zlib

from ajet import BaseJudge, ModelTuner, Workflow, WorkflowOutput, WorkflowTask

WORDS = "river stone window garden winter letter number simple morning market".split()  # noqa: SIM905


class FixedLengths(Workflow):
    """Sends one prompt of random words and takes one reply."""

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        rng = random.Random(workflow_task.task.main_query)
        text = " ".join(rng.choices(WORDS, k=int(workflow_task.task.metadata["words"])))
        reply = await model_tuner.chat([{"role": "user", "content": text}])
        return WorkflowOutput(metadata={"reply": reply["content"]})


class Checksum(BaseJudge):
    """Gives each reply a reward of its own, so that every group has something to learn from."""

    def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        reward = zlib.crc32(str(workflow_output.metadata["reply"]).encode()) % 1000 / 1000
        return reward, reward > 0.5
