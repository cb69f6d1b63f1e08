"""Which episodes a rollout runs: their ids, order and seeds, all fixed before any starts.

Episode ids sort as the episodes are ordered: 000012-train-0003-01 is step 12, group 3, member 1 of
training.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ajet.core import seeding
from ajet.core.config.rollout import Decoding
from ajet.core.errors import DataError
from ajet.core.errors.codes import Code
from ajet.core.rollout.answered import AnsweredCall
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import Mode, WorkflowTask
from ajet.core.text.error_text import one_line
from ajet.core.trajectory.trajectory import Trajectory
from ajet.core.user_code.activity import CurrentCall

OnEpisode = Callable[[Trajectory], None]


class RolloutDisplay(Protocol):
    """Shows a person what happens in a rollout."""

    def waiting(self, text: str) -> None:
        """Shows who is waited for, until it is called with an empty text."""
        ...

    def in_flight(self, calls: Mapping[str, CurrentCall]) -> None:
        """Shows what each running episode does."""
        ...


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """Asks for `num_repeat` episodes of each task, as part of one step of one mode.

    `redundancy` further episodes start in each group, which then ends with `num_repeat` of them
    (group.py). `numbers` are the groups' indices in the step, if it has several rollouts; None
    counts from 0. `failure_rate_total` is the number of episodes that `max_failure_rate` refers to;
    None stands for those of this rollout. `decoding` replaces the sampling parameters of the mode.
    """

    tasks: Sequence[Task]
    step: int
    mode: Mode
    num_repeat: int
    redundancy: int = 0
    numbers: Sequence[int] | None = None
    failure_rate_total: int | None = None
    decoding: Decoding | None = None

    @property
    def group_size(self) -> int:
        """Returns the number of episodes that start in each group."""
        return self.num_repeat + self.redundancy

    @property
    def group_numbers(self) -> Sequence[int]:
        """Returns the index in the step of each task's group."""
        return range(len(self.tasks)) if self.numbers is None else self.numbers

    @property
    def group_ids(self) -> list[str]:
        """Returns the id of each task's group."""
        name = self.mode if self.decoding is None else f"{self.mode}-{self.decoding}"
        return [group_id_of(self.step, name, number) for number in self.group_numbers]

    @property
    def num_episodes(self) -> int:
        """Returns the number of episodes that the failure rate refers to."""
        return self.failure_rate_total or self.group_size * len(self.tasks)

    def plans(self, run_seed: int) -> list[WorkflowTask]:
        """Returns all episodes, group by group. Members share the task object; each attempt at an
        episode copies it."""
        # A baseline has the seeds of the group that it is compared with.
        seed_path = seed_path_of_step("train" if self.mode == "baseline" else self.mode, self.step)
        return [
            WorkflowTask(
                task,
                episode_id_of(group_id, member),
                group_id,
                member,
                self.step,
                self.mode,
                seeding.derive(run_seed, "environment", *seed_path, number),
                self.decoding,
            )
            for number, group_id, task in zip(
                self.group_numbers, self.group_ids, self.tasks, strict=True
            )
            for member in range(self.group_size)
        ]


def copy_of(task: Task) -> Task:
    """Returns a deep copy. Raises DataError if a user's reader put something else than data in."""
    try:
        return copy.deepcopy(task)
    except (Exception, SystemExit) as error:
        raise DataError(
            f"task {task.task_id}: its messages or metadata cannot be copied: {one_line(error)}",
            code=Code.ROW_FORM,
        ) from error


class EpisodeJournal(Protocol):
    """Stores ended episodes until their group or step is in a checkpoint: a resumed run takes them
    from here and runs only the others again (core/buffer/journal.py)."""

    @property
    def keeps_calls(self) -> bool:
        """Whether `put_call` stores anything."""
        ...

    def take(self, group_id: str) -> Mapping[str, Trajectory]:
        """Returns the episodes of this group that an earlier attempt of the run finished, by their
        planned ids (a retry has another)."""
        ...

    def answered(self, group_id: str) -> Mapping[str, Sequence[AnsweredCall]]:
        """Returns the calls that the model answered in episodes of this group which an earlier
        attempt did not finish, by the planned ids of the episodes."""
        ...

    def put(self, trajectory: Trajectory) -> None:
        """Stores an episode that has ended."""
        ...

    def put_call(self, plan: WorkflowTask, call: AnsweredCall) -> None:
        """Stores a call that was answered in an episode that has not ended."""
        ...


def group_id_of(step: int, rollout: str, number: int) -> str:
    """Returns the id of a group; `rollout` is the mode, and the decoding after it if it is set."""
    return f"{step:06d}-{rollout}-{number:04d}"


def episode_id_of(group_id: str, member: int) -> str:
    """Returns the id with which an episode is planned; a retry of it gets another."""
    return f"{group_id}-{member:02d}"


def step_of_group(group_id: str) -> int:
    """Returns the step that a group is planned for."""
    return int(group_id.partition("-")[0])


def seed_path_of_step(mode: Mode, step: int) -> tuple[str, int]:
    """Returns the first part of the path that seeds are derived from. Evaluation leaves out the
    step, so that two checkpoints are measured under the same conditions."""
    return (mode, 0) if mode == "eval" else (mode, step)
