"""What episodes a rollout has, before any begins: their ids, their order and their seeds.

    step 12, group 3, member 1 of training  ->  000012-train-0003-01

Not covered: running them (runner.py).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from ajet.core import seeding
from ajet.core.task.task import Task
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory
from ajet.core.workflow.workflow import Mode, WorkflowTask

STOPPED = "the run was stopped"


def plans_of(
    tasks: Sequence[Task],
    numbers: Sequence[int],
    run_seed: int,
    *,
    step: int,
    mode: Mode,
    size: int,
) -> list[WorkflowTask]:
    """`size` members of each task's group; `numbers` are the groups' places in the step.

    Episode ids sort as the episodes are ordered. Evaluation's seeds leave out the step: two
    checkpoints meet the same conditions. A baseline meets those of the group it is for."""
    plans = []
    world = world_of("train" if mode == "baseline" else mode, step)
    for group, task in zip(numbers, tasks, strict=True):
        group_id = group_id_of(step, mode, group)
        seed = seeding.derive(run_seed, "environment", *world, group)
        plans += [
            WorkflowTask(
                copy.deepcopy(task),  # a workflow may append to its messages
                episode_id_of(group_id, member),
                group_id,
                member,
                step,
                mode,
                seed,
            )
            for member in range(size)
        ]
    return plans


def group_id_of(step: int, mode: Mode, number: int) -> str:
    """`number` is the group's place in its step."""
    return f"{step:06d}-{mode}-{number:04d}"


def episode_id_of(group_id: str, member: int) -> str:
    """As it is planned; a retry of it gets another."""
    return f"{group_id}-{member:02d}"


def step_of_group(group_id: str) -> int:
    """The step that a group is planned for."""
    return int(group_id.partition("-")[0])


def world_of(mode: Mode, step: int) -> tuple[str, int]:
    """The first part of a seed's path."""
    return (mode, 0) if mode == "eval" else (mode, step)


def never_started(plan: WorkflowTask) -> Trajectory:
    """An episode of a run that was stopped before."""
    return Trajectory(plan, (), EpisodeStatus.ABORTED, error=STOPPED)
