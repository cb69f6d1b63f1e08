"""Finds held-out tasks that are training tasks too: success on them does not show generalization.

    train.jsonl  {"question": "2 + 3?", "answer": "5"}  ─┐
    test.jsonl   {"question": "2 + 3?", "answer": "5"}  ─┴─> 1 of 1 validation tasks

Tasks are compared by their content, without ids and fields that say where a row came from. Ids
count too where several tasks of a split have one content, and for tasks of environments.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from ajet.core.task.task import Task
from ajet.core.text.plain_value import plain_value

SOURCE_FIELDS = ("split", "index")
"""The fields in which verl's data sets note where a row came from, within `extra_info`."""


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
    """Returns the held-out tasks that are training tasks too."""
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
