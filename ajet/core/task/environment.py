"""Reads `environment`: a task for each group of a step, which only names its environment.

    train_batch_size: 4, custom_envs: {FrozenLake4: …, Sokoban: …}
      -> FrozenLake4-0000, Sokoban-0000, FrozenLake4-0001, Sokoban-0001       one epoch is one step

Instances are drawn from the episode's seed, which differs at each step of training and is the same
at each validation. Not covered: the instances themselves (core/environment/).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError
from ajet.core.task.reader import BaseTaskReader
from ajet.core.task.task import Task

if TYPE_CHECKING:
    from ajet.core.config.environment import EnvironmentConfig, EnvManager

SECTION = "ajet.environment"


class EnvironmentReader(BaseTaskReader):
    """Divides the groups among the tags of each manager."""

    def get_training_tasks(self) -> list[Task]:
        size = self.config.ajet.data.train_batch_size
        manager = self._section.train_env_manager
        size_key = "ajet.data.train_batch_size"
        return self._tasks(manager, size, "train", "train_env_manager", size_key)

    def get_validation_tasks(self) -> list[Task]:
        manager = self._section.val_env_manager
        size_key = f"{SECTION}.val_env_manager.num_env_groups"
        if not manager.num_env_groups:
            return []
        size = manager.num_env_groups
        return self._tasks(manager, size, "validation", "val_env_manager", size_key)

    @property
    def _section(self) -> EnvironmentConfig:
        return self.config.ajet.environment

    def _tasks(
        self, manager: EnvManager, size: int, split: str, name: str, size_key: str
    ) -> list[Task]:
        """Returns the tasks with the tags interleaved, so that the first tasks represent all of
        them fairly."""
        tags = played_tags(self._section, manager)
        group_counts = manager.num_groups_partition or _split_evenly(size, len(tags))
        if sum(group_counts) != size:
            raise ConfigError(
                f"{SECTION}.{name}.num_groups_partition adds up to {sum(group_counts)}, "
                f"{size_key} is {size}: make them equal",
                code=Code.KEYS_CONFLICT,
            )
        fewest = min(group_counts)
        if fewest < 1:
            raise ConfigError(
                f"{SECTION}.{name}: no group is left for {tags[group_counts.index(fewest)]!r}: "
                f"raise {size_key}, or leave it out of tags",
                code=Code.KEYS_CONFLICT,
            )
        order_keys = [
            ((number + 0.5) / part, order, number)
            for order, part in enumerate(group_counts)
            for number in range(part)
        ]
        return [self._task(tags[order], number, split) for _, order, number in sorted(order_keys)]

    def _task(self, tag: str, number: int, split: str) -> Task:
        environment = self._section.custom_envs[tag]
        metadata = {"tag": tag, "split": split, "agent_name": environment.env_manager_cls}
        return Task(f"{tag}-{number:04d}", "", env_type=environment.env_type, metadata=metadata)


def played_tags(section: EnvironmentConfig, manager: EnvManager) -> Sequence[str]:
    """Returns the manager's tags; all of them where it names none."""
    tags = manager.tags or list(section.custom_envs)
    if not tags:
        raise ConfigError(
            f"{SECTION}.custom_envs is empty: name an environment in it, as "
            "FrozenLake4: {env_type: frozen_lake}",
            code=Code.NO_SUCH_ENVIRONMENT,
        )
    return tags


def _split_evenly(size: int, num_parts: int) -> list[int]:
    """Divides `size` into `num_parts`; the first parts are larger by one where it is no
    multiple."""
    quotient, remainder = divmod(size, num_parts)
    return [quotient + (order < remainder) for order in range(num_parts)]
