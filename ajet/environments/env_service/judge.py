"""Turns the environment's score into a reward, by AgentJet's rule."""

from __future__ import annotations

from typing import Any

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.judge.judge import BaseJudge
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask

SUCCESS = 1.0
WEIGHT = 0.5


class EnvServiceJudge(BaseJudge):
    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        reader = config.ajet.task_reader.type if config is not None else "env_service"
        if reader != "env_service" and "->" not in reader:
            raise ConfigError(
                "ajet.task_judge.judge_protocol: env_service asks the task's environment, and "
                f"ajet.task_reader.type={reader} gives tasks without one; set type: env_service",
                code=Code.JUDGE_SETTING,
            )

    async def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        env = workflow_task.gym_env
        if env is None:
            raise RuntimeError(f"task {workflow_task.task_id} has no environment to ask")
        score = await env.evaluate(params={"sparse": False})
        is_success = score >= SUCCESS
        # A success is worth more than any failure, and a partly solved task more than none.
        return (SUCCESS if is_success else 0.0) + WEIGHT * score, is_success
