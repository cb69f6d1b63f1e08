"""The user's own order of tasks, named in the YAML as file.py->function.

    sampler: curriculum.py->easy_first

    def easy_first(tasks, epoch, seed):
        return sorted(range(len(tasks)), key=lambda i: tasks[i].metadata["level"])

It gets all training tasks, the number of the epoch from 0 on, and the run's seed, and returns as
many indices as there are tasks; a task may be there twice, and another not at all. It is a function
of these alone, so that a run that resumes takes the same tasks. Not covered: an order that depends
on the results of the run (`dynamic_sampling` leaves out tasks without a signal).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError
from ajet.core.importing import load_function, run_user_code
from ajet.core.task.task import Task

WHERE = "ajet.data.sampler"


@dataclass(frozen=True, slots=True)
class OwnSampler:
    """Calls the user's function for an epoch and checks what it returns."""

    function: Callable[..., Any]
    tasks: Sequence[Task]
    seed: int

    @classmethod
    def of(cls, config: AjetConfig, tasks: Sequence[Task]) -> OwnSampler | None:
        """Loads the function that the config names, if any."""
        spec = config.ajet.data.sampler
        if spec is None:
            return None
        function = load_function(spec, base_dirs=config.base_dirs, where=WHERE)
        return cls(function, tasks, config.ajet.seed)

    def __call__(self, epoch: int) -> list[int]:
        """Returns the indices of the tasks of an epoch, in their order."""
        size = len(self.tasks)
        result = run_user_code(partial(self.function, self.tasks, epoch, self.seed), WHERE)
        try:
            order = [int(index) for index in result]
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{WHERE}: give a list of {size} indices of tasks ({error})"
            ) from error
        if len(order) != size or not all(0 <= index < size for index in order):
            raise ConfigError(
                f"{WHERE}: epoch {epoch}: it returned {len(order)} indices from "
                f"{min(order, default=None)} to {max(order, default=None)}: give {size} from 0 to "
                f"{size - 1}"
            )
        return order
