"""The tasks of one run: what it trains on, what it is measured on, and how far it is.

    reader ─┬─ training ── cursor ─> the next batch           total_steps = how often
            └─ held_out ─> validation

Not covered: the episodes of a task (rollout/).
"""

from __future__ import annotations

from dataclasses import dataclass

from ajet.core.config import AjetConfig
from ajet.core.run.batch_plan import BatchPlan
from ajet.core.task.cursor import DataCursor
from ajet.core.task.reader import make_reader
from ajet.core.task.task import Task


@dataclass(frozen=True, slots=True)
class RunTasks:
    """`cursor` moves; a checkpoint keeps its state."""

    training: list[Task]
    held_out: list[Task]
    cursor: DataCursor
    total_steps: int

    @classmethod
    def read(cls, config: AjetConfig) -> RunTasks:
        """The tasks that the config's reader gives."""
        reader = make_reader(config)
        training = reader.get_training_tasks()
        held_out = reader.get_validation_tasks()[: config.ajet.data.val_max_tasks]
        cursor = DataCursor(
            len(training),
            config.ajet.data.train_batch_size,
            seed=config.ajet.seed,
            shuffle=config.ajet.data.shuffle,
        )
        total_steps = BatchPlan(config, len(training), len(held_out)).total_steps
        return cls(training, held_out, cursor, total_steps)
