"""Defines task readers: a reader returns the training and the validation tasks, as lists.

    {"question": "…", "answer": "#### 42"}   ->   Task("train-0", "…", metadata=the row)

`make_reader(config)` picks the class that `ajet.task_reader.type` names; a user's own is
`file.py->Class` (user_reader.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.core.errors import DataError, RowError
from ajet.core.errors.codes import Code
from ajet.core.images.store import num_images
from ajet.core.task.chat_messages import shown_text
from ajet.core.task.row_images import with_images, without_images
from ajet.core.task.row_messages import are_messages, parsed_messages, row_messages, with_system
from ajet.core.task.task import Task
from ajet.core.text.plain_value import plain_text
from ajet.core.user_code.plugins import load_plugin, plugins

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig

READERS = "ajet.readers"
"""The group of entry points: names for `ajet.task_reader.type` and their classes."""
MAX_ID_LENGTH = 500
NO_QUESTION = "Empty"
READ_FIELDS = {
    *("task_id", "env_type", "init_messages", "system", "metadata"),
    *("images", "image", "videos", "audios"),
    *("agent_name", "agent_cfg_path", "extra_info", "tag", "split"),
    *("answer", "solution", "reward_model", "data_source", "test_command"),
}
"""The fields besides the question that ajet itself reads: the reader, its agents and judges."""
QUERY_FIELDS = ("question", "main_query", "query", "prompt", "problem")


class BaseTaskReader:
    """Base class of task readers: subclasses implement `get_training_tasks` and
    `get_validation_tasks`. One object is made for each run, with the whole config."""

    def __init__(self, config: AjetConfig) -> None:
        self.config = config

    @classmethod
    def constructor_argument(cls, config: AjetConfig) -> Any:
        """Returns the argument of the constructor; AgentJet's readers take another one."""
        return config

    def tasks_from_rows(
        self,
        rows: Iterable[Mapping[str, Any]],
        *,
        is_training: bool,
        split: str,
        source: str,
        folder: Path | None = None,
    ) -> list[Task]:
        """Returns a task for each row: a whole conversation where the run learns from replies.
        Images of rows may be files of `folder`."""
        ajet = self.config.ajet
        if self.config.learns_from_rows(is_training=is_training):
            if ajet.kind == "preference":
                from ajet.core.task.preference_rows import preference_tasks

                # Held-out rows are measured by the cross-entropy of good replies.
                loss, only_good = ajet.preference.loss, not is_training
                return preference_tasks(
                    rows,
                    split=split,
                    source=source,
                    loss=loss,
                    only_good=only_good,
                    folder=folder,
                )
            from ajet.core.task.chat_rows import chat_tasks

            train_on = ajet.supervised.train_on
            return chat_tasks(rows, split=split, source=source, train_on=train_on, folder=folder)
        field = ajet.task_reader.query_field
        return tasks_from_rows(rows, split=split, source=source, query_field=field, folder=folder)

    def get_training_tasks(self) -> list[Task]:
        """Returns every training task, in a fixed order."""
        raise NotImplementedError(f"{type(self).__name__} does not define get_training_tasks()")

    def get_validation_tasks(self) -> list[Task]:
        """Returns every held-out task, in a fixed order; an empty list means no validation."""
        raise NotImplementedError(f"{type(self).__name__} does not define get_validation_tasks()")


def make_reader(config: AjetConfig) -> BaseTaskReader:
    name = config.ajet.task_reader.type
    if name in plugins(READERS):
        return load_plugin(READERS, name)(config)
    from ajet.core.task.user_reader import UserReader

    reader_class = user_reader_class(config)
    assert reader_class is not None
    return UserReader(reader_class, config)


def user_reader_class(config: AjetConfig) -> type[BaseTaskReader] | None:
    """Returns the user's class that `ajet.task_reader.type` names; None for a reader of ajet."""
    from ajet.core.user_code.importing import load_object

    name = config.ajet.task_reader.type
    if name in plugins(READERS):
        return None
    key = "ajet.task_reader.type"
    return load_object(name, base_dirs=config.base_dirs, base=BaseTaskReader, location=key)


def tasks_from_rows(
    rows: Iterable[Mapping[str, Any]],
    *,
    split: str,
    source: str,
    query_field: str | None = None,
    folder: Path | None = None,
) -> list[Task]:
    """Returns one task for each row, whose images may be files of `folder`. Raises DataError where
    there is none, or one row has no question and another has. If no row has a field for it, the
    question of each is `NO_QUESTION`, with a warning."""
    rows = list(rows)
    # Rows without any question field are for a workflow that reads their other fields.
    lacks_question = query_field is None and not any(
        isinstance(row, Mapping) and any(name in row for name in QUERY_FIELDS) for row in rows
    )
    tasks = [
        task_from_row(
            row,
            index,
            split=split,
            source=source,
            query_field=query_field,
            may_lack_question=lacks_question,
            folder=folder,
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


def task_from_row(
    row: Mapping[str, Any],
    index: int,
    *,
    split: str,
    source: str,
    query_field: str | None = None,
    may_lack_question: bool = False,
    folder: Path | None = None,
) -> Task:
    """Returns the row as a task. `index` counts from 0; messages count rows from 1."""
    if not isinstance(row, Mapping):
        raise RowError(f"{source}: row {index + 1} is a {type(row).__name__}, not an object")
    location = f"{source}: row {index + 1}"
    query_fields = (query_field,) if query_field else QUERY_FIELDS
    asked_in = {
        field: parsed_messages(row[field], f"{location}: {field}")
        for field in query_fields
        if field in row
    }
    name = _question_field(asked_in, query_fields)
    if name is None and not may_lack_question:
        empty = next((field for field in query_fields if field in row), None)
        if empty is not None:
            problem = f"{location}: the field {empty} is empty; it is the task's question"
        else:
            problem = (
                f"{location} has none of the fields {', '.join(query_fields)}; it has "
                f"{', '.join(map(str, row)) or 'no field'}. Name the question's field in "
                "ajet.task_reader.query_field"
            )
        raise RowError(problem)
    question, before = NO_QUESTION, []
    if name is not None:
        question, before = _question_and_messages(asked_in[name], f"{location}: {name}")
    init_messages = row.get("init_messages")
    if init_messages and not are_messages(init_messages):
        raise RowError(f"{location}: init_messages is not a list of chat messages")
    if init_messages and before:
        raise RowError(
            f"{location} has init_messages, and messages before the question in {name}; keep one "
            "of them"
        )
    messages = (
        row_messages(init_messages, f"{location}: init_messages") if init_messages else before
    )
    messages = with_system(messages, row.get("system"), location)
    fields = dict(row)
    if name is not None or messages:
        asked = {"role": "user", "content": question}
        *messages, asked = with_images([*messages, asked], row, location, folder)
        question = asked["content"]
        fields = _without_data(fields, name, [*messages, asked], location)
    task_id, metadata = row.get("task_id"), row.get("metadata")
    return Task(
        task_id=f"{split}-{index}" if task_id is None else plain_text(task_id, MAX_ID_LENGTH),
        main_query=shown_text(question),
        init_messages=messages,
        env_type=str(row.get("env_type") or "no_env"),
        # AgentJet's rows have the judge's fields (`answer`) in `metadata`; row fields come first.
        metadata={**metadata, **fields} if isinstance(metadata, Mapping) else fields,
        query_parts=[] if isinstance(question, str) else question,
    )


def unread_fields(row: Mapping[str, Any], query_field: str | None) -> set[str]:
    """Returns the row's fields that are not null and that neither the reader nor ajet's agents and
    judges read by default."""
    query_fields = (query_field,) if query_field else QUERY_FIELDS
    query = _question_field(row, query_fields)
    return {name for name, value in row.items() if value is not None} - {query} - READ_FIELDS


def _question_field(row: Mapping[str, Any], fields: Sequence[str]) -> str | None:
    """Returns the first of the fields that is filled. One that holds messages comes before text:
    TRL's and Search-R1's rows keep the `question` from which their `prompt` was made."""
    filled = [field for field in fields if not _is_blank(row.get(field))]
    messages = (field for field in filled if row[field] and are_messages(row[field]))
    return next(messages, filled[0] if filled else None)


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _question_and_messages(value: Any, location: str) -> tuple[Any, list[dict[str, Any]]]:
    """Returns the question (text, or the content of the last of chat messages) and the messages
    before it."""
    if isinstance(value, str):
        return value, []
    if value and are_messages(value):
        *before, last = row_messages(value, location)
        if last["role"] == "user":
            return last["content"], before
    raise RowError(f"{location} is neither text nor chat messages that end with the user's")


def _without_data(
    row: dict[str, Any], query_field: str | None, messages: Sequence[Mapping[str, Any]], place: str
) -> dict[str, Any]:
    """Returns the row without its images, which the messages have, and with those messages where
    it had its own: a run's record has plain data alone."""
    if not any(map(num_images, messages)):
        return row
    row = without_images(row, place)
    if row.get("init_messages"):
        row["init_messages"] = messages[:-1]
    if query_field is not None and not isinstance(row[query_field], str):
        row[query_field] = messages[-len(row[query_field]) :]
    return row


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
    """Returns the numbers, from 1, of two tasks with the same id, which the record could not tell
    apart; None when all ids differ."""
    seen: dict[str, int] = {}
    for number, task in enumerate(tasks, 1):
        first = seen.setdefault(task.task_id, number)
        if first != number:
            return first, number
    return None
