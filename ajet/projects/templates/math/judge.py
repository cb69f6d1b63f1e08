"""The judge: is the agent's answer right?"""

import re

from ajet import BaseJudge, WorkflowOutput, WorkflowTask


class Judge(BaseJudge):
    """Compares the last box of the agent's answer with the row's `answer`."""

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> bool:
        boxes = re.findall(r"\\boxed\{([^{}]*)\}", workflow_output.metadata["final_answer"])
        expected = workflow_task.task.metadata["answer"]
        # YOURS (2 of 3): when is an answer right? A bool is a reward of 1 or 0; a number from 0 to
        # 1 may say how good it is.
        return bool(boxes) and boxes[-1].strip() == expected
