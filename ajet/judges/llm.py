"""Judges that ask another model for scores: `llm` shows it one answer, `llm_listwise` a group's.

The score is the reward, unscaled. The model's reason is stored as ``metadata["judge_reason"]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.judge.judge import BaseJudge, GroupJudge
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.judges.grader import LISTWISE, POINTWISE, Grade, Grader, checked_template

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig


class LlmJudge(BaseJudge):
    def __init__(self, config: AjetConfig) -> None:
        super().__init__(config)
        self._grader = _grader(config, POINTWISE)

    async def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        grade = await self._grader.grade(workflow_task.task, workflow_output)
        return verdict_with_reason(grade, workflow_output)


class LlmListwiseJudge(GroupJudge):
    def __init__(self, config: AjetConfig) -> None:
        super().__init__(config)
        self._grader = _grader(config, LISTWISE)

    async def compute_group_rewards(
        self, workflow_tasks: Sequence[WorkflowTask], workflow_outputs: Sequence[WorkflowOutput]
    ) -> list[tuple[float, bool]]:
        grades = await self._grader.grade_group(workflow_tasks, workflow_outputs)
        return [
            verdict_with_reason(g, output)
            for g, output in zip(grades, workflow_outputs, strict=True)
        ]


def verdict_with_reason(grade: Grade, output: WorkflowOutput) -> tuple[float, bool]:
    """Returns the verdict, and stores the model's reason in the output's metadata."""
    if grade.reason:
        output.metadata = {**output.metadata, "judge_reason": grade.reason}
    return grade.reward, grade.is_success


def _grader(config: AjetConfig, default: str) -> Grader:
    section, model = config.ajet.task_judge.llm, config.ajet.task_judge.model_name
    if model is None:
        raise ConfigError(
            "ajet.task_judge.model_name is missing: name the judging model",
            code=Code.JUDGE_SETTING,
        )
    template = checked_template(section.prompt, default, "ajet.task_judge.llm.prompt")
    return Grader(config, section, model=model, template=template)
