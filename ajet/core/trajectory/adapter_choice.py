"""Says which of several adapters samples a call: one for each agent, each tag, or each user.

    adapters: [pro, con]      adapter_by: agent_name          the agent's name is the adapter's
                              adapter_by: metadata.user       task.metadata["user"] is, in all calls

An agent that is not trained and has no adapter of its name samples with the base.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ajet.core.config import AjetConfig
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError
from ajet.core.plain_value import plain_text
from ajet.core.task.task import Task
from ajet.core.trajectory.plain_trajectory import MAX_NAME_LENGTH

METADATA = "metadata."
SECTION = "ajet.trainer_common.lora"


@dataclass(frozen=True, slots=True)
class AdapterChoice:
    """Holds the adapters' names, and what names a call's. `of_task` is the name that a task has
    given, where tasks do."""

    adapters: tuple[str, ...]
    by: str
    of_task: str | None = None

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self | None:
        """Reads the adapters from the config; returns None where all calls have the same one."""
        lora = config.ajet.trainer_common.lora
        return cls(tuple(lora.adapters), lora.adapter_by) if lora.adapters else None

    def for_task(self, task: Task) -> AdapterChoice:
        """Returns the choice for the calls of a task's episode. Raises `ConfigError` where the task
        should name an adapter and names none."""
        if not self.by.startswith(METADATA):
            return self
        key = self.by.removeprefix(METADATA)
        if key not in task.metadata:
            raise ConfigError(
                f"{SECTION}.adapter_by={self.by}: task {plain_text(task.task_id, MAX_NAME_LENGTH)} "
                f"has no {key!r} in its metadata",
                code=Code.ADAPTER_UNKNOWN,
            )
        name = str(task.metadata[key])
        return AdapterChoice(self.adapters, self.by, self._known(name, f"task {task.task_id}"))

    def for_call(self, agent_name: str, target_tag: str, *, trainable: bool) -> str:
        """Returns the adapter of an agent's call, or an empty name for the base. Raises
        `ConfigError` for a trained agent without an adapter."""
        if self.of_task is not None:
            return self.of_task
        name = target_tag if self.by == "target_tag" else agent_name
        if not trainable and name not in self.adapters:
            return ""
        return self._known(name, f"agent {plain_text(agent_name, MAX_NAME_LENGTH)!r}")

    def _known(self, name: str, whose: str) -> str:
        if name not in self.adapters:
            raise ConfigError(
                f"{SECTION}.adapters: {whose} is of adapter {plain_text(name, MAX_NAME_LENGTH)!r} "
                f"({self.by}), and there are {', '.join(self.adapters)}: add it",
                code=Code.ADAPTER_UNKNOWN,
            )
        return name
