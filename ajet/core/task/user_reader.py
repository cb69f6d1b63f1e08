"""Wraps a user's own task reader in checks.

    what the class raises        ->  ConfigError  rd.py:4: RuntimeError: db down
    what it gives and is no list ->  DataError    rd.py:12: D.get_training_tasks() gave a NoneType

Not covered: finding, importing and making the class (core/importing.py), and a task's own metadata.
"""

import inspect
from dataclasses import replace
from functools import partial
from typing import Any

from ajet.core.config import AjetConfig
from ajet.core.errors import DataError
from ajet.core.importing import construct, line_of, run_user_code
from ajet.core.plain_value import plain_text
from ajet.core.task.reader import MAX_ID_LENGTH, BaseTaskReader, are_messages, first_duplicate_ids
from ajet.core.task.task import Task


class UserReader(BaseTaskReader):
    """Calls the user's class, which is made with `__init__(self, config)` or `__init__(self)`."""

    def __init__(self, kind: type[BaseTaskReader], config: AjetConfig) -> None:
        super().__init__(config)
        self.kind = kind
        self.prefix = f"ajet.task_reader.type: {config.ajet.task_reader.type!r}"
        self.inner = construct(kind, kind.constructor_argument(config), self.prefix)
        if not hasattr(self.inner, "config"):
            self.inner.config = config

    def get_training_tasks(self) -> list[Task]:
        tasks = self._tasks("get_training_tasks")
        if not tasks:
            where = self._where("get_training_tasks")
            raise DataError(f"{where} gave an empty list; a run needs training tasks")
        return tasks

    def get_validation_tasks(self) -> list[Task]:
        return self._tasks("get_validation_tasks")

    def _tasks(self, method: str) -> list[Task]:
        own = getattr(self.kind, method)
        if own is getattr(BaseTaskReader, method):
            raise DataError(
                f"{self.prefix}: {line_of(self.kind)}: {self.kind.__name__} does not define "
                f"{method}(); it returns a list of ajet.Task"
            )
        if inspect.iscoroutinefunction(own):
            raise DataError(f"{self._where(method)} is async; write a plain def")
        given = run_user_code(getattr(self.inner, method), self.prefix)
        split = method.removeprefix("get_").removesuffix("_tasks")
        return _checked(given, split, self._where(method))

    def _where(self, method: str) -> str:
        location = line_of(getattr(self.kind, method))
        return f"{self.prefix}: {location}: {self.kind.__name__}.{method}()"


def _checked(given: Any, split: str, where: str) -> list[Task]:
    """Returns what the class returned, with an id for each task that has none. Raises DataError
    unless it is a list of complete tasks whose ids differ."""
    if not isinstance(given, list | tuple):
        raise DataError(f"{where} gave a {type(given).__name__}; return a list of ajet.Task")
    for number, task in enumerate(given, 1):
        if problem := run_user_code(partial(_task_problem, task), where):
            raise DataError(f"{where}: number {number} of the list {problem}")
    tasks = [
        task if task.task_id else replace(task, task_id=f"{split}-{index}")
        for index, task in enumerate(given)
    ]
    if duplicates := first_duplicate_ids(tasks):
        first, second = duplicates
        raise DataError(
            f"{where}: numbers {first} and {second} of the list have one task_id "
            f"{tasks[first - 1].task_id!r}; give each its own"
        )
    return tasks


def _task_problem(task: Any) -> str | None:
    """Says what keeps the object from being a task of a run; None where nothing does."""
    if not isinstance(task, Task):
        return f"is a {type(task).__name__}, not an ajet.Task"
    for name in ("task_id", "main_query", "env_type"):
        if not isinstance(getattr(task, name), str):
            return f"has a {name} that is not text"
    if plain_text(task.task_id, MAX_ID_LENGTH) != task.task_id:
        return f"has a task_id of more than {MAX_ID_LENGTH} characters, or with a lone surrogate"
    if not are_messages(task.init_messages):
        return "has init_messages that are not a list of chat messages"
    if not isinstance(task.metadata, dict):
        return "has metadata that is not a dict"
    for name in ("agent_name", "agent_cfg_path"):
        if not isinstance(task.metadata.get(name), str | None):
            return f"has a {name} in its metadata that is not text"
    return None
