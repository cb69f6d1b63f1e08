"""Judges with a reward function that was written for verl, and calls it as verl does. Reward
managers and functions of a whole batch are not supported.
"""

import inspect
import numbers
from collections.abc import Mapping
from typing import Any

from ajet.core.errors import KeyMissing
from ajet.core.judge.judge import Answer, BaseJudge
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.user_code.importing import load_function

SECTION = "custom_reward_function"


class RewardFunctionJudge(BaseJudge):
    """Calls the function in the YAML's section `custom_reward_function`:

    function: my_reward.py->compute_score
    reward_kwargs: {strict: true}
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        section = config.to_dict().get(SECTION) or {}
        if not section.get("function"):
            raise KeyMissing(
                f"{SECTION}.function is missing: write it at the top level of the YAML, as "
                "file.py->compute_score"
            )
        self._function = load_function(
            section["function"], base_dirs=config.base_dirs, location=f"{SECTION}.function"
        )
        self._arguments = dict(section.get("reward_kwargs") or {})

    async def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> Answer:
        """Returns the function's score, and its `acc` as the success if there is one. The function
        returns a number or a dict, of which every number is logged."""
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
