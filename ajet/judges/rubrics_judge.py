"""Judges of `judge_type: rubrics_auto_grader`: a model grades by criteria."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ajet.core.judge.judge import BaseJudge, GroupJudge
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.judges.grader import LISTWISE, POINTWISE, Grader, checked_template
from ajet.judges.llm import verdict_with_reason
from ajet.judges.rubrics import Rubrics, grading_model

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig

PROMPT_KEY = "ajet.task_judge.rubrics_auto_grader.custom_evaluation_prompt"


class RubricsJudge(BaseJudge):
    """One score a criterion for each answer; the reward is their weighted mean. If one rubric holds
    for every question, each criterion's score is logged as ``{grader_name}/criterion_1``, …."""

    def __init__(self, config: AjetConfig) -> None:
        super().__init__(config)
        self._grader = _grader(config, POINTWISE)
        self._rubrics = Rubrics(config, self._grader)
        self._name = config.ajet.task_judge.rubrics_auto_grader.grader_name

    async def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        criteria = await self._rubrics.criteria_for(workflow_task.task)
        grade = await self._grader.grade(workflow_task.task, workflow_output, criteria)
        if self._rubrics.is_shared:
            for number, score in enumerate(grade.scores, 1):
                workflow_output.log_metrics[f"{self._name}/criterion_{number}"] = score
        return verdict_with_reason(grade, workflow_output)


class RubricsListwiseJudge(GroupJudge):
    """One score an answer, all answers of a group seen together."""

    def __init__(self, config: AjetConfig) -> None:
        super().__init__(config)
        self._grader = _grader(config, LISTWISE)
        self._rubrics = Rubrics(config, self._grader)

    async def compute_group_rewards(
        self, workflow_tasks: Sequence[WorkflowTask], workflow_outputs: Sequence[WorkflowOutput]
    ) -> list[tuple[float, bool]]:
        criteria = await self._rubrics.criteria_for(workflow_tasks[0].task)
        grades = await self._grader.grade_group(workflow_tasks, workflow_outputs, criteria)
        return [
            verdict_with_reason(g, output)
            for g, output in zip(grades, workflow_outputs, strict=True)
        ]


def _grader(config: AjetConfig, default: str) -> Grader:
    section = config.ajet.task_judge.rubrics_auto_grader
    template = checked_template(section.custom_evaluation_prompt, default, PROMPT_KEY)
    return Grader(config, section, model=grading_model(config), template=template)
