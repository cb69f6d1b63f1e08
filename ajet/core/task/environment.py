"""Reads `environment`: a task for each group of a step, which only names its environment.

    train_batch_size: 4, custom_envs: {FrozenLake4: …, Sokoban: …}
      -> FrozenLake4-0000, Sokoban-0000, FrozenLake4-0001, Sokoban-0001       one epoch is one step

Instances are drawn from the episode's seed, which differs at each step of training and is the same
at each validation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ajet.core.errors import KeysConflict, NoSuchEnvironment
from ajet.core.task.reader import BaseTaskReader
from ajet.core.task.task import Task

if TYPE_CHECKING:
    from ajet.core.config.environment import EnvironmentConfig, EnvManager

SECTION = "ajet.environment"


class EnvironmentReader(BaseTaskReader):
    """Divides the groups among the tags of each manager."""

    def get_training_tasks(self) -> list[Task]:
        size = self.config.ajet.data.train_batch_size
        return self._tasks("train_env_manager", size, "train", "ajet.data.train_batch_size")

    def get_validation_tasks(self) -> list[Task]:
        size = self.config.ajet.environment.val_env_manager.num_env_groups
        if not size:
            return []
        size_key = f"{SECTION}.val_env_manager.num_env_groups"
        return self._tasks("val_env_manager", size, "validation", size_key)

    def _tasks(self, manager_name: str, size: int, split: str, size_key: str) -> list[Task]:
        section = self.config.ajet.environment
        manager: EnvManager = getattr(section, manager_name)
        tags = played_tags(section, manager)
        group_counts = manager.num_groups_partition
        if not group_counts:
            quotient, remainder = divmod(size, len(tags))
            group_counts = [quotient + (order < remainder) for order in range(len(tags))]
        if sum(group_counts) != size:
            raise KeysConflict(
                f"{SECTION}.{manager_name}.num_groups_partition adds up to {sum(group_counts)}, "
                f"{size_key} is {size}: make them equal"
            )
        fewest = min(group_counts)
        if fewest < 1:
            raise KeysConflict(
                f"{SECTION}.{manager_name}: no group is left for "
                f"{tags[group_counts.index(fewest)]!r}: raise {size_key}, or leave it out of tags"
            )
        # Each tag's groups are spread evenly over the list, so that any first part of it has the
        # tags in their proportions.
        order_keys = [
            ((number + 0.5) / count, order, number)
            for order, count in enumerate(group_counts)
            for number in range(count)
        ]
        tasks = []
        for _, order, number in sorted(order_keys):
            tag = tags[order]
            custom = section.custom_envs[tag]
            metadata = {"tag": tag, "split": split, "agent_name": custom.env_manager_cls}
            name = f"{tag}-{number:04d}"
            tasks.append(Task(name, "", env_type=custom.env_type, metadata=metadata))
        return tasks


def played_tags(section: EnvironmentConfig, manager: EnvManager) -> Sequence[str]:
    """Returns the manager's tags; all tags where it names none."""
    tags = manager.tags or list(section.custom_envs)
    if not tags:
        raise NoSuchEnvironment(
            f"{SECTION}.custom_envs is empty: name an environment in it, as "
            "FrozenLake4: {env_type: frozen_lake}"
        )
    return tags
