"""Turns rows of preferences into tasks: two replies to a prompt, or one that is good or bad.

    {"prompt": …, "chosen": …, "rejected": …}       pairs, each part as text or messages (TRL)
    {"chosen": [messages], "rejected": [messages]}  the messages that both begin with are the prompt
    {"prompt": …, "completion": …, "label": true}   one reply and whether it is good (KTO)
    {"messages": […], "label": false}               the same: the last assistant message is judged

`system` and `tools` are those of chat_rows.py, as are `token_ids` of messages. All assistant
messages after the prompt are trained. For KTO a pair is two rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ajet.core.config.kinds import PreferenceLoss
from ajet.core.errors import DataError
from ajet.core.errors.codes import Code
from ajet.core.task.chat_rows import as_messages, conversation_task, with_weights
from ajet.core.task.reader import check_split
from ajet.core.task.task import Task

Messages = list[dict[str, Any]]
Row = Mapping[str, Any]


def preference_tasks(
    rows: Iterable[Row], *, split: str, source: str, loss: PreferenceLoss
) -> list[Task]:
    """Returns a task for each row. `metadata["rejected"]` is the other conversation of a pair,
    `metadata["label"]` whether a single reply is good. Raises DataError for other rows."""
    tasks: list[Task] = []
    for index, row in enumerate(rows):
        name, location = f"{split}-{index}", f"{source}: row {index + 1}"
        if not isinstance(row, Mapping):
            problem = f"is a {type(row).__name__}, not an object"
            raise DataError(f"{location} {problem}", code=Code.ROW_FORM)
        if "chosen" in row:
            chosen, rejected = _pair(row, name, location)
            if loss == "kto":
                other = replace(rejected, task_id=f"{rejected.task_id}-rejected")
                tasks += [_labelled(chosen, True), _labelled(other, False)]
            else:
                chosen.metadata["rejected"] = rejected.init_messages
                tasks.append(chosen)
        elif loss == "kto":
            tasks.append(_single(row, name, location))
        else:
            raise DataError(
                f"{location} has no chosen and rejected, which ajet.preference.loss=dpo compares; "
                "rows with a label are for kto",
                code=Code.ROW_FORM,
            )
    check_split(tasks, split=split, source=source)
    return tasks


def _pair(row: Row, name: str, location: str) -> tuple[Task, Task]:
    chosen = as_messages(row["chosen"], "assistant", f"{location}: chosen")
    rejected = as_messages(row.get("rejected"), "assistant", f"{location}: rejected")
    if row.get("prompt") is None:
        num_common = _num_common(chosen, rejected)
        prompt = chosen[:num_common]
        chosen, rejected = chosen[num_common:], rejected[num_common:]
    else:
        prompt = as_messages(row["prompt"], "user", f"{location}: prompt")
    if chosen == rejected:
        raise DataError(
            f"{location}: chosen and rejected are the same", code=Code.ROW_NOT_TRAINABLE
        )
    prompt = _untrained(prompt)
    return (
        conversation_task(row, [*prompt, *chosen], name, location),
        conversation_task(row, [*prompt, *rejected], name, location),
    )


def _num_common(chosen: Messages, rejected: Messages) -> int:
    pairs = enumerate(zip(chosen, rejected, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(chosen), len(rejected)))


def _single(row: Row, name: str, location: str) -> Task:
    if not isinstance(row.get("label"), bool):
        raise DataError(
            f"{location}: label is {row.get('label')!r}: true for a good reply, false for a bad "
            "one",
            code=Code.ROW_FORM,
        )
    if row.get("messages") is not None:
        messages = with_weights(as_messages(row["messages"], "user", location), "last")
    else:
        prompt = as_messages(row.get("prompt"), "user", f"{location}: prompt")
        reply = as_messages(row.get("completion"), "assistant", f"{location}: completion")
        messages = [*_untrained(prompt), *reply]
    return _labelled(conversation_task(row, messages, name, location), row["label"])


def _labelled(task: Task, label: bool) -> Task:
    task.metadata["label"] = label
    return task


def _untrained(messages: Messages) -> Messages:
    return [{**each, "weight": 0} if each["role"] == "assistant" else each for each in messages]
