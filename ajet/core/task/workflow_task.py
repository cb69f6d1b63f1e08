"""Defines the input and the output of a workflow, as plain data to record and send.

WorkflowTask(task, episode_id, …)  ->  workflow.execute(…)  ->  WorkflowOutput(reward, metadata)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ajet.core.task.task import Task

if TYPE_CHECKING:
    from ajet.core.config.rollout import Decoding

Mode = Literal["train", "eval", "baseline"]
"""A baseline is a greedy episode that a training group is compared with; it is not trained."""
LARGEST_REWARD = 1e30
"""The largest absolute value of a reward: float32 can hold it, and float64 its square."""


class EpisodeEnvironment(Protocol):
    """Describes the environment of a live episode, as its workflow calls it
    (environments/env_service/host.py). A call from the event loop must be awaited; a call from a
    thread returns its result.
    """

    @property
    def state(self) -> list[dict[str, Any]]:
        """Returns the environment's last messages."""
        ...

    def step(self, action: str | Mapping[str, Any], params: Mapping[str, Any] | None = None) -> Any:
        """Acts and returns ``(observation, reward, terminate, info)``."""
        ...

    def evaluate(
        self, episode_uuid: str | None = None, params: Mapping[str, Any] | None = None
    ) -> Any:
        """Returns the score so far."""
        ...


open_environments: dict[str, EpisodeEnvironment] = {}
"""Maps the id of a running episode to its environment (`WorkflowTask.gym_env`)."""


@dataclass(frozen=True, slots=True)
class WorkflowTask:
    """Describes one run of one task, as plain data.

    `group_id` names the task within its step; the members of a group (`rollout_index` 0, 1, …) run
    the same task and share the environment's seed, `seed`. `decoding`, if set, replaces the
    mode's own sampling parameters.
    """

    task: Task
    episode_id: str
    group_id: str
    rollout_index: int
    step: int
    mode: Mode
    seed: int
    decoding: Decoding | None = None

    @property
    def task_id(self) -> str:
        return self.task.task_id

    @property
    def env_type(self) -> str:
        return self.task.env_type

    # Workflows written for AgentJet use the following names.

    @property
    def episode_uuid(self) -> str:
        return self.episode_id

    @property
    def task_thread_index(self) -> int:
        return self.rollout_index

    @property
    def task_batch_index(self) -> int:
        """Returns the task's index in its batch: the last part of `group_id`."""
        return int(self.group_id.rpartition("-")[2])

    @property
    def task_tag(self) -> str:
        return ""

    @property
    def gym_env(self) -> EpisodeEnvironment | None:
        """Returns the running episode's environment; None where the tasks have none."""
        return open_environments.get(self.episode_id)


@dataclass(slots=True)
class WorkflowOutput:
    """Holds what a workflow returns. With `reward=None` the judge gives the reward. A bool as the
    reward is 1 or 0, and the success where `is_success` is None. `agent_rewards` maps each trained
    agent's name to its reward, where these differ; then `reward` is for metrics only."""

    reward: float | None = None
    is_success: bool | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    log_metrics: dict[str, float] = field(default_factory=dict)
    agent_rewards: dict[str, float] = field(default_factory=dict)
