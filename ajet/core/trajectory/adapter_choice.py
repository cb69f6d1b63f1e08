"""Chooses the adapter that samples a call, by agent, by tag, or by a field of the task's metadata.

An agent that is not trained and has no adapter of its name samples with the base model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.task.task import Task
from ajet.core.text.plain_value import plain_text
from ajet.core.trajectory.plain_trajectory import MAX_NAME_LENGTH

METADATA = "metadata."
SECTION = "ajet.trainer_common.lora"


@dataclass(frozen=True, slots=True)
class AdapterChoice:
    """Holds the names of the adapters, and what selects one: `by` is ``agent_name``,
    ``target_tag`` or ``metadata.KEY``. With the last, `task_adapter` is the task's value."""

    adapters: tuple[str, ...]
    by: str
    task_adapter: str | None = None

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self | None:
        """Reads the adapters from the config; returns None where all calls have the same one."""
        lora = config.ajet.trainer_common.lora
        return cls(tuple(lora.adapters), lora.adapter_by) if lora.adapters else None

    def for_task(self, task: Task) -> AdapterChoice:
        """Returns the choice for one task's episode. Raises `ConfigError` if the task's metadata
        lacks the key or names an unknown adapter."""
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
        return AdapterChoice(self.adapters, self.by, self._checked(name, f"task {task.task_id}"))

    def for_call(self, agent_name: str, target_tag: str, *, trainable: bool) -> str:
        """Returns the adapter of an agent's call; "" is the base model. Raises `ConfigError` for a
        trained agent without an adapter."""
        if self.task_adapter is not None:
            return self.task_adapter
        name = target_tag if self.by == "target_tag" else agent_name
        if not trainable and name not in self.adapters:
            return ""
        return self._checked(name, f"agent {plain_text(agent_name, MAX_NAME_LENGTH)!r}")

    def _checked(self, name: str, whose: str) -> str:
        if name not in self.adapters:
            raise ConfigError(
                f"{SECTION}.adapters: {whose} is of adapter {plain_text(name, MAX_NAME_LENGTH)!r} "
                f"({self.by}), and there are {', '.join(self.adapters)}: add it",
                code=Code.ADAPTER_UNKNOWN,
            )
        return name
