"""Decides which tasks a step takes: a seeded order for every epoch, with a position to save.

    epoch 0: 3 0 2 4 1 | epoch 1: 1 4 0 2 3 | …        batches of 2:  [3 0] [2 4] [1 1] [4 0] …

A batch at the end of an epoch is filled from the next one, so every batch is whole, every task is
taken once an epoch, and a task may be in a batch twice, as two groups. The order is a function of
the seed and the epoch alone, also where it is the user's own (own_sampler.py). result_cursor.py is
the same for an order that depends on results.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ajet.core.errors import CheckpointError, DataError
from ajet.core.errors.codes import Code
from ajet.core.seeding import derive
from ajet.core.task.results import GroupResult


def check_same_data(cursor: object, state: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raises CheckpointError where one of the cursor's attributes differs from the checkpoint's."""
    for name in names:
        if state.get(name) != getattr(cursor, name):
            raise CheckpointError(
                f"the checkpoint's data had {name}={state.get(name)}, this run has "
                f"{getattr(cursor, name)}: use the same data and seed, or pass --no-resume",
                code=Code.CHECKPOINT_DIFFERS,
            )


class DataCursor:
    """Yields batches of task indices without end."""

    def __init__(
        self,
        num_tasks: int,
        batch_size: int,
        *,
        seed: int,
        shuffle: bool = True,
        own_order: Callable[[int], list[int]] | None = None,
    ) -> None:
        if num_tasks < 1:
            raise DataError("there is no training task", code=Code.NO_TASK)
        assert batch_size >= 1
        self.num_tasks = num_tasks
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self._own_order = own_order
        self._own_order_cache: tuple[int, list[int]] = (-1, [])
        self._taken = 0

    @property
    def epoch(self) -> int:
        """Returns the epoch of the next task, from 0."""
        return self._taken // self.num_tasks

    def total_steps(self, num_epochs: int) -> int:
        """Returns the number of steps that take every task at least `num_epochs` times."""
        return -(-self.num_tasks * num_epochs // self.batch_size)

    def next_batch(self, size: int | None = None) -> list[int]:
        """Returns the next `size` task indices; None takes `batch_size`."""
        size = self.batch_size if size is None else size
        batch: list[int] = []
        while len(batch) < size:
            # The rest of the epoch at most: the next one has another order.
            offset = self._taken % self.num_tasks
            chunk = self._order(self.epoch)[offset : offset + size - len(batch)]
            batch += chunk
            self._taken += len(chunk)
        return batch

    def skip(self, task: int | None) -> None:
        """Records that the next task, which is `task`, was taken before a run was killed."""
        self._taken += 1

    def observe(self, results: Iterable[GroupResult]) -> None:
        """Does nothing: the order does not depend on results."""

    def state_after(self, result: GroupResult) -> dict[str, Any]:
        return self.state_dict()

    def metrics(self) -> dict[str, float]:
        return {}

    def _order(self, epoch: int) -> list[int]:
        if self._own_order is not None:
            if self._own_order_cache[0] != epoch:
                self._own_order_cache = epoch, self._own_order(epoch)
            return self._own_order_cache[1]
        order = list(range(self.num_tasks))
        if self.shuffle:
            random.Random(derive(self.seed, "epoch", epoch)).shuffle(order)
        return order

    def state_dict(self) -> dict[str, Any]:
        return {
            "num_tasks": self.num_tasks,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "taken": self._taken,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state` was saved. Raises CheckpointError unless the data set and the
        seed are the same."""
        check_same_data(self, state, ("num_tasks", "seed", "shuffle"))
        if not isinstance(position := state.get("taken"), int) or position < 0:
            raise CheckpointError(
                f"the checkpoint's position in the data is {position!r}: pass --no-resume",
                code=Code.CHECKPOINT_DIFFERS,
            )
        self._taken = position
