"""What a judge is: it reads the episode's output and gives a reward.

Not covered: checking what it returns, and its deadline (core/rollout/scoring.py).
"""

from collections.abc import Awaitable
from typing import Any

from ajet.core.workflow.workflow import WorkflowOutput, WorkflowTask


class BaseJudge:
    """Subclass this and write `compute_reward`, plain or async. Made once for each run: training
    and validation ask the same object.

    `config` is the whole config tree (the user's own sections included).
    """

    def __init__(self, config: Any = None) -> None:
        self.config = config

    def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool] | Awaitable[tuple[float, bool]]:
        """``(reward, is_success)``; the reward a finite number. A plain method that takes long
        holds up all episodes: make it async, and await."""
        raise NotImplementedError(f"{type(self).__name__} does not define compute_reward()")
