"""Provides `random_dummy`: made-up sums, to try a workflow without data."""

import random

from ajet.core.seeding import derive
from ajet.core.task.reader import BaseTaskReader, tasks_from_rows
from ajet.core.task.task import Task

NUMBERS = 1000


class RandomDummyReader(BaseTaskReader):
    """Draws questions such as ``What is 12 + 34?`` from the run's seed. For a workflow that makes
    its own tasks, ``metadata["random_number"]`` is different in each task of a split."""

    def get_training_tasks(self) -> list[Task]:
        return self._draw("train", self.config.ajet.task_reader.random_dummy.num_training)

    def get_validation_tasks(self) -> list[Task]:
        count = self.config.ajet.task_reader.random_dummy.num_validation
        return self._draw("validation", count) if count else []

    def _draw(self, split: str, count: int) -> list[Task]:
        rng = random.Random(derive(self.config.ajet.seed, "random_dummy", split))
        pairs = [(rng.randint(0, 99), rng.randint(0, 99)) for _ in range(count)]
        numbers = rng.sample(range(max(NUMBERS, count)), count)
        rows = [
            {"question": f"What is {a} + {b}?", "answer": f"#### {a + b}", "random_number": number}
            for (a, b), number in zip(pairs, numbers, strict=True)
        ]
        return tasks_from_rows(rows, split=split, source="random_dummy")
