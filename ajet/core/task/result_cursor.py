"""Decides which tasks a step takes by the results so far, with a state to save.

    batch 0 [3 1] -> groups end -> their results -> batch 1 [3 0] -> …

The loop reports how the groups of a step ended before it asks for the next tasks, so the choice
does not depend on timing. With trinity's staleness above 0, groups of several steps run at once,
and it depends on which of them have ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any, Protocol

from ajet.core.errors import CheckpointError, DataError
from ajet.core.errors.codes import Code
from ajet.core.task.cursor import check_same_data
from ajet.core.task.results import GroupResult, ResultLog


class Sampler(Protocol):
    """Chooses tasks by their results."""

    def choose(self, log: ResultLog, size: int) -> list[int]:
        """Returns the indices of the next `size` tasks."""
        ...


class ResultCursor:
    """Yields batches of task indices that a sampler chooses."""

    def __init__(
        self,
        num_tasks: int,
        batch_size: int,
        *,
        seed: int,
        sampler: Sampler,
        start: Iterable[GroupResult] = (),
    ) -> None:
        """`start` has results from before the run."""
        if num_tasks < 1:
            raise DataError("there is no training task", code=Code.NO_TASK)
        self.num_tasks, self.batch_size, self.seed = num_tasks, batch_size, seed
        self._sampler = sampler
        self._log = ResultLog(num_tasks)
        self._log.observe(start)

    def next_batch(self, size: int | None = None) -> list[int]:
        """Returns the next `size` task indices; None takes `batch_size`."""
        batch = self._sampler.choose(self._log, self.batch_size if size is None else size)
        self._log.take(batch, self.batch_size)
        return batch

    def skip(self, task: int | None) -> None:
        """Records that `task` was taken before a run was killed, whatever would be chosen now."""
        assert task is not None
        self._log.take([task], self.batch_size)

    def observe(self, results: Iterable[GroupResult]) -> None:
        self._log.observe(results)

    def state_after(self, result: GroupResult) -> dict[str, Any]:
        """Returns the state that `observe` of this result would lead to, without changing it."""
        log = copy(self._log)
        log.of_task = [*log.of_task]  # `observe` replaces entries of the list
        log.observe([result])
        return self.state_dict() | {"results": log.state_dict()}

    def metrics(self) -> dict[str, float]:
        return self._log.counts()

    def state_dict(self) -> dict[str, Any]:
        return {"num_tasks": self.num_tasks, "seed": self.seed, "results": self._log.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where `state` was saved. Raises CheckpointError unless the data set and the
        seed are the same."""
        check_same_data(self, state, ("num_tasks", "seed"))
        if "results" not in state:
            raise CheckpointError(
                "the checkpoint has no results of tasks, which ajet.data.sampler needs: use the "
                "sampler that it was written with, or pass --no-resume",
                code=Code.CHECKPOINT_DIFFERS,
            )
        self._log.load_state_dict(state["results"])
