"""Compares the agent's answer with the reference answer as text."""

from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.judges.answer import ReferenceJudge, final_answer, final_part, has_number
from ajet.judges.number_forms import decimal_or_text


class ExactMatchJudge(ReferenceJudge):
    """Case, surrounding space, repeated spaces and a final full stop do not count. A reference that
    the row holds as a number is compared as a number: "2" and "2.00" both equal 2.0, but only
    "2.50" equals the text "2.50"."""

    def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        reference = normalised(self.reference(workflow_task.task))
        answer = normalised(final_part(final_answer(workflow_output.metadata)))
        if has_number(workflow_task.task):
            answer = decimal_or_text(answer)
        is_success = answer == reference
        return float(is_success), is_success


def normalised(text: str) -> str:
    return " ".join(text.split()).removesuffix(".").casefold()
