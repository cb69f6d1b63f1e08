"""What the user writes: an agent that runs one task, and says what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ajet.core.task.task import Task

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig
    from ajet.core.environment.gym_env import GymEnv
    from ajet.core.workflow.tuner import ModelTuner

Mode = Literal["train", "eval", "baseline"]
"""A baseline is a greedy episode beside a group of training; it is not trained."""
LARGEST_REWARD = 1e30
"""What is calculated from it stays finite in float32."""


@dataclass(frozen=True, slots=True)
class WorkflowTask:
    """One run of one task: data only.

    `group_id` names the task within its step; the members of a group (`rollout_index` 0, 1, …)
    run the same task and share the environment's seed, `seed`.
    """

    task: Task
    episode_id: str
    group_id: str
    rollout_index: int
    step: int
    mode: Mode
    seed: int

    @property
    def task_id(self) -> str:
        return self.task.task_id

    @property
    def env_type(self) -> str:
        return self.task.env_type

    # The names that workflows written for AgentJet use.

    @property
    def episode_uuid(self) -> str:
        return self.episode_id

    @property
    def task_thread_index(self) -> int:
        return self.rollout_index

    @property
    def task_batch_index(self) -> int:
        """The task's place in its batch: the last part of `group_id`."""
        return int(self.group_id.rpartition("-")[2])

    @property
    def task_tag(self) -> str:
        return ""

    @property
    def gym_env(self) -> GymEnv | None:
        """The episode's environment while it lives; None where the tasks have none."""
        from ajet.core.environment.gym_env import open_environment

        return open_environment(self.episode_id)


@dataclass(slots=True)
class WorkflowOutput:
    """What a workflow returns. `reward=None` asks the judge."""

    reward: float | None = None
    is_success: bool | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    log_metrics: dict[str, float] = field(default_factory=dict)


class Workflow:
    """Subclass this and write `execute`. One object is made for each episode, so `self` is free.

    `trainable_targets` limits training to these agent names or target tags (None: every agent).
    """

    name: ClassVar[str] = "workflow"
    trainable_targets: ClassVar[list[str] | None] = None

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        """Run the agent on `workflow_task.task`, with `model_tuner` as its model."""
        raise NotImplementedError(f"{type(self).__name__} does not define execute()")

    @classmethod
    def check_config(cls, config: AjetConfig) -> None:
        """Raise a `ConfigError` for what would fail in every episode; asked before a launch."""
