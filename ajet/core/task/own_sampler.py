"""The user's own order of tasks, named in the YAML as file.py->function.

    sampler: curriculum.py->easy_first                 an order for each epoch

    def easy_first(tasks, epoch, seed):
        return sorted(range(len(tasks)), key=lambda i: tasks[i].metadata["level"])

    sampler: curriculum.py->least_known                the next tasks, by the results so far

    def least_known(tasks, results, size, seed):
        return sorted(range(len(tasks)), key=lambda i: results[i].episodes)[:size]

The first gets the number of the epoch, from 0, and returns as many indices as there are tasks,
repetitions allowed. The second has an argument `results`, a `TaskResults` for each task; it is
called for each batch with a different seed, and returns `size` indices. Neither may keep state: a
run that resumes must take the same tasks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.seeding import derive
from ajet.core.task.results import ResultLog
from ajet.core.task.task import Task
from ajet.core.user_code.importing import load_function, run_user_code

WHERE = "ajet.data.sampler"


def load_own_sampler(config: AjetConfig, tasks: Sequence[Task]) -> OwnSampler | OwnChoice:
    function = load_function(config.ajet.data.sampler, base_dirs=config.base_dirs, location=WHERE)
    takes_results = "results" in inspect.signature(function).parameters
    return (OwnChoice if takes_results else OwnSampler)(function, tasks, config.ajet.seed)


@dataclass(frozen=True, slots=True)
class OwnSampler:
    """Calls the user's function for an epoch and checks its result."""

    function: Callable[..., Any]
    tasks: Sequence[Task]
    seed: int

    def __call__(self, epoch: int) -> list[int]:
        result = run_user_code(partial(self.function, self.tasks, epoch, self.seed), WHERE)
        return _checked(result, len(self.tasks), len(self.tasks), f"epoch {epoch}")


@dataclass(frozen=True, slots=True)
class OwnChoice:
    """Calls the user's function for a batch and checks its result."""

    function: Callable[..., Any]
    tasks: Sequence[Task]
    seed: int

    def choose(self, log: ResultLog, size: int) -> list[int]:
        seed = derive(self.seed, "sampler", log.num_taken)
        results = tuple(log.of_task)
        result = run_user_code(partial(self.function, self.tasks, results, size, seed), WHERE)
        return _checked(result, size, len(self.tasks), f"after {log.num_taken} tasks")


def _checked(result: Any, size: int, num_tasks: int, when: str) -> list[int]:
    """Returns the indices as a list. Raises ConfigError unless they are `size` of the tasks."""
    try:
        order = [int(index) for index in result]
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{WHERE}: give a list of {size} indices of tasks ({error})", code=Code.OWN_RESULT
        ) from error
    if len(order) != size or not all(0 <= index < num_tasks for index in order):
        raise ConfigError(
            f"{WHERE}: {when}: it returned {len(order)} indices from "
            f"{min(order, default=None)} to {max(order, default=None)}: give {size} from 0 to "
            f"{num_tasks - 1}",
            code=Code.OWN_RESULT,
        )
    return order
