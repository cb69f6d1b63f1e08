"""Finds held-out tasks that are training tasks too: what a run learns there is not success on tasks
that it has not seen.

    train.jsonl  {"question": "2 + 3?", "answer": "5"}  ─┐
    test.jsonl   {"question": "2 + 3?", "answer": "5"}  ─┴─> 1 of 1 validation tasks

Tasks are compared by their content: an id, and what says where a row came from, are no part of it.
They are where the content does not tell the tasks of one split apart, as in a game whose number is
its task's id, and in tasks of an environment. What a workflow draws from an episode's seed is not
seen. Not covered: questions that are almost the same.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from ajet.core.plain_value import plain_value
from ajet.core.task.task import Task

SOURCE_FIELDS = ("split", "index")
"""The fields in which verl's data sets note where a row came from, within `extra_info`."""


def overlap_line(training: Sequence[Task], held_out: Sequence[Task]) -> str | None:
    """Returns what to say of held-out tasks that are training tasks too; None if there are none."""
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
    """Returns the held-out tasks that are training tasks too."""
    questions = {task.main_query for task in training} & {task.main_query for task in held_out}
    trained, measured = _by_content(training, questions), _by_content(held_out, questions)
    repeated = []
    for content, tasks in measured.items():
        same = trained.get(content, [])
        is_told_apart = len(tasks) == len(same) == 1
        ids = {task.task_id for task in same}
        repeated += [task for task in tasks if is_told_apart or task.task_id in ids]
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
        "environment": task.env_type,
        "row": task.metadata,
    }
    if not task.main_query or task.env_type != "no_env":
        return whole | {"id": task.task_id}
    row = {key: value for key, value in task.metadata.items() if key not in ("task_id", "split")}
    if isinstance(source := row.get("extra_info"), dict):
        row["extra_info"] = {key: source[key] for key in source if key not in SOURCE_FIELDS}
    return whole | {"row": row}
