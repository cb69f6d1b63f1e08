"""Turns rows of preferences into tasks: two replies to a prompt, or one that is good or bad.

    {"prompt": …, "chosen": …, "rejected": …}       pairs, each part as text or messages (TRL)
    {"chosen": [messages], "rejected": [messages]}  the messages that both begin with are the prompt
    {"prompt": …, "completion": …, "label": true}   one reply and whether it is good (KTO)
    {"messages": […], "label": false}               the same: the last assistant message is judged

`system`, `images` and `tools` are those of chat_rows.py, as are `token_ids` of messages. A prompt
that the replies repeat is taken once. All assistant messages after the prompt are trained. For KTO
a pair is two rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ajet.core.config.kinds import PreferenceLoss
from ajet.core.errors import DataError, RowError
from ajet.core.errors.codes import Code
from ajet.core.task.chat_messages import parsed_arguments
from ajet.core.task.chat_rows import COMMON_FIELDS, as_messages, conversation_task, untrained
from ajet.core.task.reader import check_split
from ajet.core.task.task import Task

Messages = list[dict[str, Any]]
Row = Mapping[str, Any]
PAIR = ("prompt", "chosen", "rejected")
SINGLE = ("prompt", "completion", "messages", "label")
LABELS = {"true": True, "false": False}
"""Labels as text, as CSV files have them."""


def preference_tasks(
    rows: Iterable[Row],
    *,
    split: str,
    source: str,
    loss: PreferenceLoss,
    only_good: bool = False,
    folder: Path | None = None,
) -> list[Task]:
    """Returns a task for each row. `metadata["rejected"]` is the other conversation of a pair,
    `metadata["label"]` whether a single reply is good; `only_good` leaves out those that are not.
    Images may be files of `folder`. Raises DataError for other rows."""
    pairs: list[tuple[Task, Task]] = []
    singles: list[Task] = []
    for index, row in enumerate(rows):
        name, location = f"{split}-{index}", f"{source}: row {index + 1}"
        if not isinstance(row, Mapping):
            problem = f"is a {type(row).__name__}, not an object"
            raise RowError(f"{location} {problem}")
        if row.get("chosen") is not None:
            pairs.append(_pair(row, name, location, folder))
        elif loss == "kto":
            singles.append(_single(row, name, location, folder))
        else:
            raise RowError(
                f"{location} has no chosen and rejected, which ajet.preference.loss=dpo compares; "
                "rows with a label are for kto"
            )
    if loss == "dpo":
        for chosen, rejected in pairs:
            chosen.metadata["rejected"] = rejected.init_messages
        tasks = [chosen for chosen, _ in pairs]
    else:  # bad replies apart from good ones: a step estimates the KL with the next row's prompt
        tasks = [*singles, *(_labelled(chosen, True) for chosen, _ in pairs)]
        tasks += [
            _labelled(replace(rejected, task_id=f"{rejected.task_id}-rejected"), False)
            for _, rejected in pairs
        ]
        tasks = [task for task in tasks if task.metadata["label"] or not only_good]
    check_split(tasks, split=split, source=source)
    return tasks


def unread_preference_fields(row: Row) -> set[str]:
    """Returns the fields of the row that are not null and not read."""
    present = {name for name, value in row.items() if value is not None}
    return present.difference(PAIR if "chosen" in present else SINGLE, COMMON_FIELDS)


def _pair(row: Row, name: str, location: str, folder: Path | None) -> tuple[Task, Task]:
    chosen = as_messages(row["chosen"], "assistant", f"{location}: chosen")
    rejected = as_messages(row.get("rejected"), "assistant", f"{location}: rejected")
    if row.get("prompt") is None:
        prompt = chosen[: _num_common(chosen, rejected)]
    else:
        prompt = as_messages(row["prompt"], "user", f"{location}: prompt")
    replies = [
        _after(prompt, messages, f"{location}: {part}")
        for part, messages in (("chosen", chosen), ("rejected", rejected))
    ]
    if [*map(_said, replies[0])] == [*map(_said, replies[1])]:
        raise DataError(
            f"{location}: chosen and rejected are the same", code=Code.ROW_NOT_TRAINABLE
        )
    prompt = untrained(prompt)
    first, second = (
        conversation_task(row, [*prompt, *messages], name, location, folder) for messages in replies
    )
    return first, second


def _single(row: Row, name: str, location: str, folder: Path | None) -> Task:
    label = row.get("label")
    if isinstance(label, str):
        label = LABELS.get(label.strip().lower(), label)
    if not isinstance(label, bool):
        raise RowError(
            f"{location}: label is {row.get('label')!r}: true for a good reply, false for a bad one"
        )
    if row.get("messages") is not None:
        messages = as_messages(row["messages"], "user", f"{location}: messages")
        replies = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
        last = replies[-1] if replies else 0
        prompt, reply = messages[:last], messages[last:]
    else:
        prompt = as_messages(row.get("prompt"), "user", f"{location}: prompt")
        reply = as_messages(row.get("completion"), "assistant", f"{location}: completion")
    reply = _after(prompt, reply, f"{location}: completion")
    task = conversation_task(row, [*untrained(prompt), *reply], name, location, folder)
    return _labelled(task, label)


def _after(prompt: Messages, messages: Messages, location: str) -> Messages:
    """Returns the messages without the prompt, where they begin with it. Raises DataError if no
    user asked, or if what is left does not begin with a reply."""
    if not any(message["role"] == "user" for message in prompt):
        raise RowError(
            f"{location}: no user message comes before it: give a prompt, as text or messages"
        )
    if [*map(_said, messages[: len(prompt)])] == [*map(_said, prompt)]:
        messages = messages[len(prompt) :]
    if not messages or messages[0]["role"] != "assistant":
        first = messages[0]["role"] if messages else "nothing"
        raise RowError(f"{location}: after the prompt comes {first}, not an assistant's message")
    return messages


def _num_common(chosen: Messages, rejected: Messages) -> int:
    """Returns how many messages both begin with, before a reply. Where the same reply got another
    answer of a tool or a user, that reply is the first that is compared."""
    pairs = enumerate(zip(chosen, rejected, strict=False))
    differs = (n for n, (a, b) in pairs if _said(a) != _said(b))
    number = next(differs, min(len(chosen), len(rejected)) - 1)
    replies = [
        n for n, message in enumerate(chosen[: number + 1]) if message["role"] == "assistant"
    ]
    is_reply = rejected[number]["role"] == chosen[number]["role"] == "assistant"
    return number if is_reply or not replies else replies[-1]


def _said(message: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns what a message says to a model, without ids and fields that nothing reads."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    parts = ("role", "content", "reasoning_content", "token_ids")
    calls = [(call["name"], parsed_arguments(call.get("arguments"))) for call in calls]
    return (*(message.get(part) or "" for part in parts), calls)


def _labelled(task: Task, label: bool) -> Task:
    task.metadata["label"] = label
    return task
