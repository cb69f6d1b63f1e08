"""Wraps a user's own task reader in checks.

    an exception             ->  ConfigError  rd.py:4: RuntimeError: db down
    another type than a list ->  DataError    rd.py:12: D.get_training_tasks() gave a NoneType
    an unusable task         ->  DataError    … number 3 of the list cannot be copied: …

A task's messages and metadata may hold any object that can be copied: each episode gets a copy.
"""

import copy
import inspect
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from ajet.core.config import AjetConfig
from ajet.core.errors import DataError
from ajet.core.errors.codes import Code
from ajet.core.task.reader import MAX_ID_LENGTH, BaseTaskReader, are_messages, first_duplicate_ids
from ajet.core.task.task import Task
from ajet.core.text.plain_value import plain_text, type_name
from ajet.core.user_code.importing import construct, line_of, run_user_code

MAX_DEPTH = 100
MAX_VALUES = 10_000_000
"""The most values in one task's messages and metadata. The record shows 100,000 of them."""
CONTAINERS = (dict, list, tuple, set, frozenset)


class UserReader(BaseTaskReader):
    """Calls the user's class, which is made with `__init__(self, config)` or `__init__(self)`."""

    def __init__(self, reader_class: type[BaseTaskReader], config: AjetConfig) -> None:
        super().__init__(config)
        self.kind = reader_class
        self.prefix = f"ajet.task_reader.type: {config.ajet.task_reader.type!r}"
        self.inner = construct(reader_class, reader_class.constructor_argument(config), self.prefix)
        if not hasattr(self.inner, "config"):
            self.inner.config = config

    def get_training_tasks(self) -> list[Task]:
        tasks = self._tasks("get_training_tasks")
        if not tasks:
            location = self._where("get_training_tasks")
            raise DataError(
                f"{location} gave an empty list; a run needs training tasks", code=Code.NO_TASK
            )
        return tasks

    def get_validation_tasks(self) -> list[Task]:
        return self._tasks("get_validation_tasks")

    def _tasks(self, method: str) -> list[Task]:
        function = getattr(self.kind, method)
        if function is getattr(BaseTaskReader, method):
            raise DataError(
                f"{self.prefix}: {line_of(self.kind)}: {self.kind.__name__} does not define "
                f"{method}(); it returns a list of ajet.Task",
                code=Code.OWN_METHOD_MISSING,
            )
        if inspect.iscoroutinefunction(function):
            raise DataError(
                f"{self._where(method)} is async; write a plain def", code=Code.OWN_SIGNATURE
            )
        result = run_user_code(getattr(self.inner, method), self.prefix)
        split = method.removeprefix("get_").removesuffix("_tasks")
        return _checked(result, split, self._where(method))

    def _where(self, method: str) -> str:
        location = line_of(getattr(self.kind, method))
        return f"{self.prefix}: {location}: {self.kind.__name__}.{method}()"


def _checked(result: Any, split: str, location: str) -> list[Task]:
    """Returns the class's result, with an id for each task that has none. Raises DataError unless
    it is a list of complete tasks whose ids differ."""
    if not isinstance(result, list | tuple):
        raise DataError(
            f"{location} gave a {type_name(type(result))}; return a list of ajet.Task",
            code=Code.OWN_RESULT,
        )
    tasks = []
    for index, task in enumerate(_items(result)):
        place = f"{location}: number {index + 1} of the list"
        if problem := run_user_code(partial(_task_problem, task), place):
            raise DataError(f"{place} {problem}", code=Code.OWN_RESULT)
        run_user_code(partial(copy.deepcopy, task), f"{place} cannot be copied for an episode")
        # Texts of a subclass of str may print or compare as something else.
        tasks.append(
            replace(
                task,
                task_id=str.__str__(task.task_id) or f"{split}-{index}",
                main_query=str.__str__(task.main_query),
                env_type=str.__str__(task.env_type),
            )
        )
    if duplicates := first_duplicate_ids(tasks):
        first, second = duplicates
        raise DataError(
            f"{location}: numbers {first} and {second} of the list have one task_id "
            f"{tasks[first - 1].task_id!r}; give each its own",
            code=Code.TASK_ID_TWICE,
        )
    return tasks


def _items(entries: list[Any] | tuple[Any, ...]) -> Iterator[Any]:
    """Yields the stored entries: a subclass's __iter__ may yield others."""
    return list.__iter__(entries) if isinstance(entries, list) else tuple.__iter__(entries)


def _task_problem(task: Any) -> str | None:
    """Says why the object cannot be a task of a run; None where it can."""
    if not isinstance(task, Task):
        return f"is a {type_name(type(task))}, not an ajet.Task"
    for name in ("task_id", "main_query", "env_type"):
        if not isinstance(getattr(task, name), str):
            return f"has a {name} that is not text"
    if plain_text(task.task_id, MAX_ID_LENGTH) != task.task_id:
        return f"has a task_id of more than {MAX_ID_LENGTH} characters, or with a lone surrogate"
    if not are_messages(task.init_messages):
        return "has init_messages that are not a list of chat messages"
    if not are_messages(task.query_parts):
        return "has query_parts that are not a list of objects"
    if not isinstance(task.metadata, dict):
        return "has metadata that is not a dict"
    try:
        num_values, _ = _size([task.init_messages, task.query_parts, task.metadata], 0, {})
    except ValueError as problem:
        return f"has init_messages or metadata that {problem}"
    if num_values > MAX_VALUES:
        return f"has init_messages or metadata that hold more than {MAX_VALUES} values"
    for name in ("agent_name", "agent_cfg_path"):
        if not isinstance(task.metadata.get(name), str | None):
            return f"has a {name} in its metadata that is not text"
    return None


def _size(value: Any, depth: int, sizes: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Returns the number of values in a value, itself included, and the height of their nesting.
    Raises ValueError for what lies more than `MAX_DEPTH` deep.

    `sizes` caches the results of containers by id: one that is in two places counts twice, as
    when it is copied or recorded, but is walked once.
    """
    value_type = type(value)
    base: Any = next(
        (container for container in CONTAINERS if issubclass(value_type, container)), None
    )
    if base is None:
        return 1, 0
    if base is list and value_type.__iter__ is not list.__iter__:
        raise ValueError(
            f"hold a {type_name(value_type)}, a list that defines __iter__; give a plain list"
        )
    # A container that holds itself is met again before its size is known. The walk then ends at
    # MAX_DEPTH, where the height below counts as too large.
    if id(value) not in sizes and depth <= MAX_DEPTH:
        items = [*base.__iter__(value), *(dict.values(value) if base is dict else ())]
        inner = [_size(item, depth + 1, sizes) for item in items]
        height = 1 + max((entry[1] for entry in inner), default=0)
        sizes[id(value)] = 1 + sum(entry[0] for entry in inner), height
    num_values, height = sizes.get(id(value), (0, MAX_DEPTH + 1))
    if depth + height > MAX_DEPTH:
        raise ValueError(f"are nested more than {MAX_DEPTH} deep, or hold themselves")
    return num_values, height
