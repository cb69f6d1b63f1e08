"""The math agent's judge: is the number in the agent's last ``\\boxed{…}`` the dataset's answer?"""

from ajet import BaseJudge, WorkflowOutput, WorkflowTask
from ajet.judges.math import MathJudge


class MathAnswerAsJudge(BaseJudge):
    """Compares ``workflow_output.metadata["final_answer"]`` with ``task.metadata["answer"]``.

    GSM8K's ``#### 42`` is understood. ``(1.0, True)`` when they are equal, else ``(0.0, False)``.
    """

    def __init__(self, config: object = None) -> None:
        super().__init__(config)
        self._math = MathJudge(config)

    async def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        return await self._math.compute_reward(workflow_task, workflow_output)
