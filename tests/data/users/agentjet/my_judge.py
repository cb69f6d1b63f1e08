import re

from ajet.task_judge.base_judge import BaseJudge
from ajet.workflow import WorkflowOutput, WorkflowTask


class NumberJudge(BaseJudge):

    def __init__(self, config):
        super().__init__(config)
        self.partial = 0.1

    def compute_reward(
        self,
        workflow_task: WorkflowTask,
        workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        agent_answer = workflow_output.metadata.get("final_answer", "")
        reference_answer = workflow_task.task.metadata.get("answer", "")
        numbers = re.findall(r"-?\d+", str(agent_answer))
        if not numbers:
            return 0.0, False
        is_success = numbers[-1] == str(reference_answer)
        return 1.0 if is_success else self.partial, is_success
