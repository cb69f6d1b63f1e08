"""The math agent's judge: is the number in the agent's last ``\\boxed{…}`` the dataset's answer?"""

from ajet.judges.math import MathJudge


class MathAnswerAsJudge(MathJudge):
    """Compares ``workflow_output.metadata["final_answer"]`` with ``task.metadata["answer"]``.

    GSM8K's ``#### 42`` is understood. ``(1.0, True)`` when they are equal, else ``(0.0, False)``.
    """
