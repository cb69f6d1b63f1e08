"""Defines task readers: a reader returns the training and the validation tasks, as lists.

    {"question": "…", "answer": "#### 42"}   ->   Task("train-0", "…", metadata=the row)

`make_reader(config)` picks the class that `ajet.task_reader.type` names; a user's own is
`file.py->Class` (user_reader.py). Not covered: the order in which a run takes the tasks
(cursor.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.core.error_codes import Code
from ajet.core.errors import DataError
from ajet.core.plain_value import plain_text
from ajet.core.task.row_messages import are_messages, refuse_images, row_messages, with_system
from ajet.core.task.task import Task

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig

READERS = {
    **dict.fromkeys(
        ("dataset", "jsonl_dataset_file", "huggingface_dat_repo"),
        "ajet.core.task.dataset->DatasetReader",
    ),
    "random_dummy": "ajet.core.task.random_dummy->RandomDummyReader",
    "environment": "ajet.core.task.environment->EnvironmentReader",
    "env_service": "ajet.tools.env_service.reader->EnvServiceReader",
    "data_generation": "ajet.sources.generation.reader->DataGenerationReader",
    "tracing": "ajet.sources.tracing.reader->TracingReader",
}
"""Maps `ajet.task_reader.type` to a reader, which is imported when it is chosen."""
MAX_ID_LENGTH = 500
NO_QUESTION = "Empty"
READ_FIELDS = {
    *("task_id", "env_type", "init_messages", "system", "metadata", "images", "videos", "audios"),
    *("agent_name", "agent_cfg_path", "extra_info", "tag", "split"),
    *("answer", "solution", "reward_model", "data_source", "test_command"),
}
"""The fields beside the question that ajet itself reads from a row: the reader, agents, judges."""
QUERY_FIELDS = ("question", "main_query", "query", "prompt", "problem")


class BaseTaskReader:
    """Base class of task readers: subclasses implement both methods. One object is made for each
    run, with the whole config."""

    def __init__(self, config: AjetConfig) -> None:
        self.config = config

    @classmethod
    def constructor_argument(cls, config: AjetConfig) -> Any:
        """Returns what a reader is made with."""
        return config

    def tasks_from_rows(
        self, rows: Iterable[Mapping[str, Any]], *, is_training: bool, split: str, source: str
    ) -> list[Task]:
        """Returns a task for each row: a conversation where the run learns from given replies."""
        ajet = self.config.ajet
        if self.config.learns_from_rows(is_training=is_training):
            from ajet.core.task.chat_rows import chat_tasks

            train_on = ajet.supervised.train_on
            return chat_tasks(rows, split=split, source=source, train_on=train_on)
        field = ajet.task_reader.query_field
        return tasks_from_rows(rows, split=split, source=source, query_field=field)

    def get_training_tasks(self) -> list[Task]:
        """Returns every training task, in a fixed order."""
        raise NotImplementedError(f"{type(self).__name__} does not define get_training_tasks()")

    def get_validation_tasks(self) -> list[Task]:
        """Returns every held-out task, in a fixed order; with an empty list there is no
        validation."""
        raise NotImplementedError(f"{type(self).__name__} does not define get_validation_tasks()")


def make_reader(config: AjetConfig) -> BaseTaskReader:
    """Makes the reader that `ajet.task_reader.type` names."""
    name = config.ajet.task_reader.type
    if name in READERS:
        module, _, kind = READERS[name].partition("->")
        return getattr(import_module(module), kind)(config)
    from ajet.core.task.user_reader import UserReader

    found = user_reader_class(config)
    assert found is not None
    return UserReader(found, config)


def user_reader_class(config: AjetConfig) -> type[BaseTaskReader] | None:
    """Returns the user's own class that `ajet.task_reader.type` names, or None for a reader of
    ajet."""
    from ajet.core.importing import load_object

    name = config.ajet.task_reader.type
    if name in READERS:
        return None
    where = "ajet.task_reader.type"
    return load_object(name, base_dirs=config.base_dirs, base=BaseTaskReader, location=where)


def tasks_from_rows(
    rows: Iterable[Mapping[str, Any]], *, split: str, source: str, query_field: str | None = None
) -> list[Task]:
    """Returns one task for each row. Raises DataError when there is none, or a row has no question
    though one has a field for it. Where none has, the rows are for a workflow that reads their
    other fields: the question of each is `NO_QUESTION`, and a warning says so."""
    rows = list(rows)
    lacks_question = query_field is None and not any(map(_has_question_field, rows))
    tasks = [
        task_from_row(
            row,
            index,
            split=split,
            source=source,
            query_field=query_field,
            may_lack_question=lacks_question,
        )
        for index, row in enumerate(rows)
    ]
    if tasks and lacks_question:
        logger.warning(
            "{}: no row of the {} split has a field {}: main_query is {!r}; name the question's "
            "field in ajet.task_reader.query_field",
            source,
            split,
            ", ".join(QUERY_FIELDS),
            NO_QUESTION,
        )
    check_split(tasks, split=split, source=source)
    return tasks


def _has_question_field(row: Any) -> bool:
    return isinstance(row, Mapping) and any(name in row for name in QUERY_FIELDS)


def task_from_row(
    row: Mapping[str, Any],
    index: int,
    *,
    split: str,
    source: str,
    query_field: str | None = None,
    may_lack_question: bool = False,
) -> Task:
    """Returns the row as a task. `index` counts from 0; messages count rows from 1."""
    if not isinstance(row, Mapping):
        raise DataError(
            f"{source}: row {index + 1} is a {type(row).__name__}, not an object",
            code=Code.ROW_FORM,
        )
    where = f"{source}: row {index + 1}"
    wanted = (query_field,) if query_field else QUERY_FIELDS
    name = next((field for field in wanted if not _is_blank(row.get(field))), None)
    if name is None and not may_lack_question:
        empty = next((field for field in wanted if field in row), None)
        raise DataError(
            f"{where}: the field {empty} is empty; it is the task's question"
            if empty
            else f"{where} has none of the fields {', '.join(wanted)}; it has "
            f"{', '.join(map(str, row)) or 'no field'}. Name the question's field in "
            "ajet.task_reader.query_field",
            code=Code.ROW_FORM,
        )
    query, before = (
        _query_and_messages(row[name], f"{where}: {name}") if name else (NO_QUESTION, [])
    )
    given = row.get("init_messages")
    if given and not are_messages(given):
        raise DataError(
            f"{where}: init_messages is not a list of chat messages", code=Code.ROW_FORM
        )
    if given and before:
        raise DataError(
            f"{where} has init_messages, and messages before the question in {name}; keep one of "
            "them",
            code=Code.ROW_FORM,
        )
    messages = row_messages(given, f"{where}: init_messages") if given else before
    messages = with_system(messages, row.get("system"), where)
    refuse_images(row, [query, *(each["content"] for each in messages)], where)
    return Task(
        task_id=plain_text(row["task_id"], MAX_ID_LENGTH)
        if row.get("task_id") is not None
        else f"{split}-{index}",
        main_query=query,
        init_messages=messages,
        env_type=str(row.get("env_type") or "no_env"),
        metadata=_metadata(row),
    )


def unread_fields(row: Mapping[str, Any], query_field: str | None) -> set[str]:
    """Returns the fields of the row, but those that are null, that neither its task nor one of
    ajet's agents and judges is made of. Settings may name more of them."""
    wanted = (query_field,) if query_field else QUERY_FIELDS
    query = next((field for field in wanted if not _is_blank(row.get(field))), None)
    there = {name for name, value in row.items() if value is not None}
    return there - {query} - READ_FIELDS


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _metadata(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the row, and beside its fields those of its `metadata`, where AgentJet's rows have
    what the judge compares with."""
    inner = row.get("metadata")
    return {**inner, **row} if isinstance(inner, Mapping) else dict(row)


def _query_and_messages(value: Any, where: str) -> tuple[str, list[dict[str, Any]]]:
    """Splits a row's value: text is the question; of chat messages the last user's is the question
    and the others precede it."""
    if isinstance(value, str):
        return value, []
    if value and are_messages(value):
        *before, last = row_messages(value, where)
        if last["role"] == "user":
            return last["content"], before
    raise DataError(
        f"{where} is neither text nor chat messages that end with the user's", code=Code.ROW_FORM
    )


def check_split(tasks: Sequence[Task], *, split: str, source: str) -> None:
    """Raises DataError if a split has no task, or two tasks with one id."""
    if not tasks:
        raise DataError(f"{source}: the {split} split is empty", code=Code.NO_TASK)
    if duplicates := first_duplicate_ids(tasks):
        first, second = duplicates
        raise DataError(
            f"{source}: rows {first} and {second} have one task_id {tasks[first - 1].task_id!r}; "
            "give each its own, or leave the field out",
            code=Code.TASK_ID_TWICE,
        )


def first_duplicate_ids(tasks: Sequence[Task]) -> tuple[int, int] | None:
    """Returns the numbers, from 1, of two tasks with the same id, which would be one task in the
    record; None when all ids differ."""
    seen: dict[str, int] = {}
    for number, task in enumerate(tasks, 1):
        first = seen.setdefault(task.task_id, number)
        if first != number:
            return first, number
    return None
