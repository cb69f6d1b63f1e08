"""Judges by a reward function that was written for verl, which is called as verl calls it.

    ajet:
      task_judge: {judge_protocol: ajet.compat.verl_reward->RewardFunctionJudge}
    custom_reward_function:
      function: my_reward.py->compute_score
      reward_kwargs: {strict: true}

    compute_score(data_source=…, solution_str=…, ground_truth=…, extra_info=…, strict=True)
        1.0, or {"score": 1.0, "acc": 1.0, …}

`solution_str` is the output's `final_answer`, the other three are the row's. Of a dict `score` is
the reward, `acc` says whether the task is solved, and every number is logged. Not covered: reward
managers, and functions of a whole batch.
"""

import inspect
import numbers
from collections.abc import Mapping
from typing import Any

from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError
from ajet.core.importing import load_function
from ajet.core.judge.judge import Answer, BaseJudge
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask

SECTION = "custom_reward_function"


class RewardFunctionJudge(BaseJudge):
    """Calls the function that the section `custom_reward_function` of the YAML names."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        section = config.to_dict().get(SECTION) or {}
        if not section.get("function"):
            raise ConfigError(
                f"{SECTION}.function is missing: write it at the top level of the YAML, as "
                "file.py->compute_score",
                code=Code.KEY_MISSING,
            )
        where = f"{SECTION}.function"
        self._function = load_function(
            section["function"], base_dirs=config.base_dirs, location=where
        )
        self._arguments = dict(section.get("reward_kwargs") or {})

    async def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> Answer:
        """Returns the function's score, and its `acc` as the success where it gives one."""
        row = workflow_task.task.metadata
        returned = self._function(
            data_source=row.get("data_source"),
            solution_str=workflow_output.metadata["final_answer"],
            ground_truth=(row.get("reward_model") or {}).get("ground_truth"),
            extra_info=row.get("extra_info"),
            **self._arguments,
        )
        result = await returned if inspect.isawaitable(returned) else returned
        if not isinstance(result, Mapping):
            return result
        if "score" not in result:
            raise ValueError(f"the function returned {sorted(result)}: a dict has a 'score'")
        workflow_output.log_metrics |= {
            name: float(value)
            for name, value in result.items()
            if name != "score" and isinstance(value, numbers.Real)
        }
        accuracy = result.get("acc")
        return result["score"], None if accuracy is None else bool(accuracy >= 1)
