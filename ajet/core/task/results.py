"""Records how often each training task was taken, and how its groups ended.

    task 3   taken in batch 0: 8 episodes, 3 successes     share 0.39, with signal
             taken in batch 5: 8 episodes, 8 successes     share 0.81, no signal once in a row

Groups that are left out of the update count too. An evaluation of the training tasks (`ajet eval
--split training --out FILE`) may be the first group of each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from ajet.core.errors import CheckpointError, DataError
from ajet.core.errors.codes import Code
from ajet.core.task.task import Task

DECAY = 0.5
"""The weight of a task's earlier episodes when another group ends: the policy has changed."""
WHERE = "ajet.data.curriculum.results_path"


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Holds how a group ended: the index of its task, the numbers of judged and of successful
    episodes, and whether two of them earned different rewards."""

    task: int
    num_episodes: int
    num_wins: int
    has_signal: bool


@dataclass(frozen=True, slots=True)
class TaskResults:
    """Holds the results of one task. `taken` counts how often it was taken, last in batch
    `last_batch` (from 0; -1 for never); `is_waiting` until that group ends.

    `groups` counts groups with a judged episode, of which the last `blank` in a row had no signal.
    `episodes` and `wins` are decayed counts. Checkpoints store the fields by position.
    """

    taken: int = 0
    last_batch: int = -1
    is_waiting: bool = False
    groups: int = 0
    blank: int = 0
    episodes: float = 0.0
    wins: float = 0.0

    @property
    def share(self) -> float:
        """Returns the estimated chance of success: 1/2 for a task without a result."""
        # The mean of the posterior under Jeffreys' prior, Beta(1/2, 1/2): it is never 0 or 1, so
        # that no task's chance of a signal becomes 0.
        return (self.wins + 0.5) / (self.episodes + 1)

    def signal_chance(self, group_size: int) -> float:
        """Returns the chance that a group has both successes and failures."""
        return 1 - self.share**group_size - (1 - self.share) ** group_size

    def after(self, result: GroupResult) -> TaskResults:
        """Returns the task's results with those of another group."""
        if not result.num_episodes:  # nothing was judged, so nothing was learnt about the task
            return replace(self, is_waiting=False)
        return replace(
            self,
            is_waiting=False,
            groups=self.groups + 1,
            blank=0 if result.has_signal else self.blank + 1,
            episodes=self.episodes * DECAY + result.num_episodes,
            wins=self.wins * DECAY + result.num_wins,
        )


class ResultLog:
    """Holds the results of all training tasks, and the number of tasks taken so far."""

    def __init__(self, num_tasks: int) -> None:
        self.of_task = [TaskResults()] * num_tasks
        self.num_taken = 0

    def take(self, tasks: Sequence[int], batch_size: int) -> None:
        """Records that these tasks are taken next."""
        for task in tasks:
            results, batch = self.of_task[task], self.num_taken // batch_size
            self.of_task[task] = replace(
                results, taken=results.taken + 1, last_batch=batch, is_waiting=True
            )
            self.num_taken += 1

    def observe(self, results: Iterable[GroupResult]) -> None:
        for result in results:
            self.of_task[result.task] = self.of_task[result.task].after(result)

    def counts(self) -> dict[str, float]:
        """Returns how many tasks are solved, hopeless, with signal and unknown, as metrics; none
        before a task was taken."""
        measured = [task for task in self.of_task if task.groups]
        if not self.num_taken:
            return {}
        solved = sum(task.blank > 0 and task.share >= 0.5 for task in measured)
        hopeless = sum(task.blank > 0 and task.share < 0.5 for task in measured)
        counts = {
            "unknown": len(self.of_task) - len(measured),
            "with_signal": len(measured) - solved - hopeless,
            "solved": solved,
            "hopeless": hopeless,
        }
        return {f"curriculum/{name}": float(number) for name, number in counts.items()}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint, without tasks that have no results."""
        unknown = TaskResults()
        tasks = {
            str(index): list(astuple(results))
            for index, results in enumerate(self.of_task)
            if results != unknown
        }
        return {"taken": self.num_taken, "tasks": tasks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        try:
            stored = {int(index): TaskResults(*values) for index, values in state["tasks"].items()}
            self.num_taken = int(state["taken"])
            restored = [stored.pop(index, TaskResults()) for index in range(len(self.of_task))]
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise CheckpointError(
                "the checkpoint's results of tasks cannot be read: pass --no-resume",
                code=Code.CHECKPOINT_DIFFERS,
            ) from error
        if stored:  # indices beyond this run's tasks
            raise CheckpointError(
                "the checkpoint's results are of other tasks: pass --no-resume",
                code=Code.CHECKPOINT_DIFFERS,
            )
        self.of_task = restored


def read_results(file: Path, tasks: Sequence[Task]) -> list[GroupResult]:
    """Returns the groups of an evaluation of the training tasks, as `ajet eval --out` writes it."""
    try:
        played = json.loads(file.read_text(encoding="utf-8"))["tasks"]
        groups = [
            _group_result(index, played[task.task_id])
            for index, task in enumerate(tasks)
            if task.task_id in played
        ]
    except OSError as error:
        raise DataError(f"{WHERE}: {file}: {error.strerror}", code=Code.RESULT_FILE) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"{WHERE}: {file}: not a result of `ajet eval --split training --out FILE`",
            code=Code.RESULT_FILE,
        ) from error
    if not groups:
        raise DataError(
            f"{WHERE}: {file} has no training task of this run: measure them with "
            "ajet eval --split training",
            code=Code.RESULT_FILE,
        )
    return groups


def _group_result(index: int, episodes: Mapping[str, Any]) -> GroupResult:
    # An episode that failed has no reward, and says nothing about the task.
    judged = [
        (bool(success), float(reward))
        for success, reward in zip(episodes["success"], episodes["reward"], strict=True)
        if reward is not None and math.isfinite(reward)
    ]
    wins = sum(success for success, _ in judged)
    return GroupResult(index, len(judged), wins, len({reward for _, reward in judged}) > 1)
