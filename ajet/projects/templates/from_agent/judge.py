"""The judge, to be filled in: how good is the agent's answer?"""

from ajet import BaseJudge, WorkflowOutput, WorkflowTask


class Judge(BaseJudge):
    """Compares the agent's answer with the row's `answer`."""

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> bool:
        answer = workflow_output.metadata["final_answer"]
        expected = workflow_task.task.metadata["answer"]
        # FILL IN: True or False, a number from 0 to 1, or (reward, is_success). As it is, the
        # answer must end with the words that are expected.
        words = " ".join(answer.split()).rstrip(".")
        return f" {words}".endswith(f" {expected}")
