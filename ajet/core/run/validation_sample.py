"""Chooses the held-out tasks that a run is measured on: the same ones at each validation.

    val_max_tasks: auto    100 of them at most, drawn by the run's seed, in their order
                   N       the first N
                   null    all

The standard error of success on n tasks is at most 0.5 / sqrt(n): 5 points for 100. That of the
difference between two validations is smaller, since they have the same tasks and seeds.
"""

import random
from typing import Literal

from ajet.core import seeding
from ajet.core.config import AjetConfig
from ajet.core.task.task import Task

AUTO_TASKS = 100
TaskLimit = int | Literal["auto"] | None


def sample_size(num_tasks: int, limit: TaskLimit) -> int:
    if limit is None:
        return num_tasks
    return min(num_tasks, AUTO_TASKS if limit == "auto" else limit)


def validation_sample(tasks: list[Task], config: AjetConfig) -> list[Task]:
    """Returns the held-out tasks that a run is measured on, in the order of `tasks`."""
    limit = config.ajet.data.val_max_tasks
    size = sample_size(len(tasks), limit)
    if limit != "auto" or size == len(tasks):
        return tasks[:size]
    draw = random.Random(seeding.derive(config.ajet.seed, "validation_sample"))
    return [tasks[index] for index in sorted(draw.sample(range(len(tasks)), size))]
