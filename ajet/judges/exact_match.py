r"""Compares the agent's answer with the reference answer as text.

Case, surrounding space, repeated spaces and a final full stop do not count. The agent's answer is
the last ``\boxed{…}`` or ``#### …`` of ``metadata["final_answer"]``, or all of it.
"""

from ajet.core.judge.judge import BaseJudge
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.judges.answer import final_answer, final_part, reference_answer


class ExactMatchJudge(BaseJudge):
    """Gives 1 for the same text, else 0."""

    def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        answer = normalised(final_part(final_answer(workflow_output.metadata)))
        is_success = answer == normalised(reference_answer(workflow_task.task))
        return float(is_success), is_success


def normalised(text: str) -> str:
    return " ".join(text.split()).removesuffix(".").casefold()
