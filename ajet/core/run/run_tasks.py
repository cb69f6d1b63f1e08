"""The tasks of one run: those it trains on and those it is measured on.

reader ─┬─ training ── cursor ─> the next batch           total_steps = how often
        └─ held_out ─> validation
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ajet.core.config import AjetConfig
from ajet.core.errors import KeysConflict
from ajet.core.run.batch_plan import BatchPlan
from ajet.core.task.adaptive import AdaptiveSampler, AdaptiveSettings
from ajet.core.task.cursor import DataCursor
from ajet.core.task.jsonl import resolve
from ajet.core.task.own_sampler import OwnSampler, load_own_sampler
from ajet.core.task.result_cursor import ResultCursor
from ajet.core.task.results import read_results
from ajet.core.task.task import Task
from ajet.core.text.plain_value import plain_value
from ajet.core.workflow.registry import WorkflowFactory

SOURCE_FIELDS = ("split", "index")
"""The fields in which verl's data sets note where a row came from, within `extra_info`."""


@dataclass(frozen=True, slots=True)
class RunTasks:
    """Holds the tasks of a run. `cursor` moves during the run; a checkpoint stores its state.
    `held_out` is the sample of `num_held_out_available` tasks that the run is measured on.
    `workflows` makes the workflow of each task."""

    training: list[Task]
    held_out: list[Task]
    cursor: DataCursor | ResultCursor
    total_steps: int
    num_held_out_available: int
    workflows: WorkflowFactory

    @classmethod
    def of(
        cls,
        config: AjetConfig,
        workflows: WorkflowFactory,
        training: list[Task],
        held_out: list[Task],
        num_available: int,
    ) -> RunTasks:
        """Returns the tasks with a cursor at the beginning and the number of steps."""
        cursor = make_cursor(config, training)
        total_steps = BatchPlan(config, len(training), len(held_out)).total_steps
        return cls(training, held_out, cursor, total_steps, num_available, workflows)

    def from_the_beginning(self, config: AjetConfig) -> RunTasks:
        """Returns the same tasks with a cursor that has not moved, for another attempt."""
        return replace(self, cursor=make_cursor(config, self.training))


def make_cursor(config: AjetConfig, tasks: list[Task]) -> DataCursor | ResultCursor:
    """Makes the cursor that `ajet.data.sampler` names: a fixed order, or one that sees results."""
    data, seed = config.ajet.data, config.ajet.seed
    if data.sampler == "uniform":
        return DataCursor(len(tasks), data.train_batch_size, seed=seed, shuffle=data.shuffle)
    if data.sampler == "adaptive":
        sampler = AdaptiveSampler(tasks, AdaptiveSettings.from_config(config))
    else:
        sampler = load_own_sampler(config, tasks)
    if isinstance(sampler, OwnSampler):  # an order for each epoch, without results
        return DataCursor(
            len(tasks), data.train_batch_size, seed=seed, shuffle=data.shuffle, own_order=sampler
        )
    if config.ajet.task_reader.type == "environment":
        raise KeysConflict(
            f"ajet.data.sampler={data.sampler}: environments (task_reader environment) differ at "
            "each step, so results say nothing about the next one; use uniform"
        )
    path = data.curriculum.results_path
    start = () if path is None else read_results(resolve(path, config.base_dirs), tasks)
    return ResultCursor(len(tasks), data.train_batch_size, seed=seed, sampler=sampler, start=start)


def overlap_line(training: Sequence[Task], held_out: Sequence[Task]) -> str | None:
    """Returns a warning about held-out tasks that are training tasks too, or None."""
    repeated = tasks_in_both(training, held_out)
    if not repeated:
        return None
    are = "is also a training task" if len(repeated) == 1 else "are also training tasks"
    return (
        f"data: {len(repeated):,} of {len(held_out):,} validation tasks {are} (first: "
        f"{repeated[0].task_id}): success on what is trained does not tell how others are solved; "
        "take them out of one of the two"
    )


def tasks_in_both(training: Sequence[Task], held_out: Sequence[Task]) -> list[Task]:
    """Returns the held-out tasks that are training tasks too. Tasks are compared by their content,
    without ids and fields that say where a row came from. Ids count too where several tasks of a
    split have one content, and for tasks of environments."""
    # Content is serialized for shared questions only: data sets may have a million rows.
    questions = {task.main_query for task in training} & {task.main_query for task in held_out}
    trained, measured = _by_content(training, questions), _by_content(held_out, questions)
    repeated = []
    for content, tasks in measured.items():
        same = trained.get(content, [])
        is_unique = len(tasks) == len(same) == 1
        ids = {task.task_id for task in same}
        repeated += [task for task in tasks if is_unique or task.task_id in ids]
    return repeated


def _by_content(tasks: Iterable[Task], questions: set[str]) -> dict[str, list[Task]]:
    by_content: defaultdict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        if task.main_query in questions:
            by_content[json.dumps(plain_value(_content(task)), sort_keys=True)].append(task)
    return by_content


def _content(task: Task) -> dict[str, Any]:
    whole = {
        "question": task.main_query,
        "messages": task.init_messages,
        "parts": task.query_parts,
        "environment": task.env_type,
        "row": task.metadata,
    }
    if not task.main_query or task.env_type != "no_env":
        return whole | {"id": task.task_id}
    row = {key: value for key, value in task.metadata.items() if key not in ("task_id", "split")}
    if isinstance(source := row.get("extra_info"), dict):
        row["extra_info"] = {key: source[key] for key in source if key not in SOURCE_FIELDS}
    return whole | {"row": row}
