"""Turns rows of a supervised data set into tasks whose messages are a whole conversation.

    {"messages": [{"role": "user", …}, {"role": "assistant", …}], "tools": […]}         OpenAI
    {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", …}]}            ShareGPT
    {"prompt": "…" or messages, "completion": "…" or messages}

A message is as OpenAI has it. An assistant message with `"weight": 0` is context; one that
`ajet distill-data` wrote has the `token_ids` that were sampled. In Parquet and other columns a
missing field is null, and tools may be JSON text.

Not covered: which messages are trained where no weight says so (`ajet.supervised.train_on`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ajet.core.error_codes import Code
from ajet.core.errors import DataError
from ajet.core.plain_value import plain_text
from ajet.core.task.reader import MAX_ID_LENGTH, are_messages, check_split
from ajet.core.task.task import Task

SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
SHAPES = "messages, conversations, or prompt and completion"


def chat_tasks(
    rows: Iterable[Mapping[str, Any]], *, split: str, source: str, train_on: str
) -> list[Task]:
    """Returns one task for each row. Raises DataError for one that is no conversation, or has no
    assistant message to train."""
    tasks = [
        _chat_task(row, f"{split}-{index}", f"{source}: row {index + 1}", train_on)
        for index, row in enumerate(rows)
    ]
    check_split(tasks, split=split, source=source)
    return tasks


def _chat_task(row: Mapping[str, Any], own_id: str, where: str, train_on: str) -> Task:
    messages = _with_weights(_messages(row, where), train_on)
    if not any(is_trained(each) for each in messages):
        raise DataError(
            f"{where}: none of its messages is an assistant's with a weight",
            code=Code.ROW_NOT_TRAINABLE,
        )
    questions = [each["content"] for each in messages if each["role"] == "user"]
    given_id = row.get("task_id")
    return Task(
        task_id=own_id if given_id is None else plain_text(given_id, MAX_ID_LENGTH),
        main_query=next((each for each in questions if isinstance(each, str)), ""),
        init_messages=messages,
        metadata={
            "tools": _tools(row.get("tools"), where),
            "vocabulary": row.get("vocabulary"),
        },
    )


def is_trained(message: Mapping[str, Any]) -> bool:
    """Tells whether a message of a row is a reply that is trained."""
    return message["role"] == "assistant" and message.get("weight") != 0


def _messages(row: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Returns the row's conversation in OpenAI's form."""
    if not isinstance(row, Mapping):
        raise DataError(f"{where} is a {type(row).__name__}, not an object", code=Code.ROW_FORM)
    if row.get("messages") is not None:
        return [_message(each, where) for each in _listed(row["messages"], f"{where}: messages")]
    if row.get("conversations") is not None:
        listed = _listed(row["conversations"], f"{where}: conversations")
        return [_from_sharegpt(each, where) for each in listed]
    if row.get("prompt") is not None and row.get("completion") is not None:
        prompt = _as_messages(row["prompt"], "user", f"{where}: prompt")
        return prompt + _as_messages(row["completion"], "assistant", f"{where}: completion")
    raise DataError(
        f"{where} has neither {SHAPES}; it has {', '.join(map(str, row)) or 'no field'}",
        code=Code.ROW_FORM,
    )


def _listed(value: Any, where: str) -> Sequence[Mapping[str, Any]]:
    if not value or not are_messages(value):
        raise DataError(f"{where} is no list of messages", code=Code.ROW_FORM)
    return value


def _as_messages(value: Any, role: str, where: str) -> list[dict[str, Any]]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return [_message(each, where) for each in _listed(value, where)]


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    plain = {key: value for key, value in message.items() if value is not None}
    role = plain.get("role")
    if role not in ("system", "developer", "user", "assistant", "tool"):
        raise DataError(f"{where}: a message's role is {role!r}", code=Code.ROW_FORM)
    if plain.get("weight", 1) not in (0, 1):
        raise DataError(
            f"{where}: a message's weight is {plain['weight']!r}; give 0 or 1", code=Code.ROW_FORM
        )
    return {"content": None, **plain}


def _from_sharegpt(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    if "role" in message:
        return _message(message, where)
    role = SHAREGPT_ROLES.get(str(message.get("from")))
    if role is None:
        raise DataError(
            f"{where}: a message is from {message.get('from')!r}; there are "
            f"{', '.join(SHAREGPT_ROLES)}",
            code=Code.ROW_FORM,
        )
    weight = {} if message.get("weight") is None else {"weight": message["weight"]}
    return _message({"role": role, "content": message.get("value"), **weight}, where)


def _with_weights(messages: list[dict[str, Any]], train_on: str) -> list[dict[str, Any]]:
    """Returns the messages; with `train_on: last` the replies before the last have weight 0."""
    if train_on == "all":
        return messages
    last = max((i for i, each in enumerate(messages) if each["role"] == "assistant"), default=-1)
    return [
        {**each, "weight": 0} if each["role"] == "assistant" and index != last else each
        for index, each in enumerate(messages)
    ]


def _tools(given: Any, where: str) -> list[dict[str, Any]] | None:
    """Returns the tools in OpenAI's form; a bare function is put into one."""
    if isinstance(given, str):
        try:
            given = json.loads(given) if given.strip() else None
        except ValueError as error:
            raise DataError(
                f"{where}: tools is text and no JSON: {error}", code=Code.ROW_FORM
            ) from error
    if not given:
        return None
    if not are_messages(given):
        raise DataError(f"{where}: tools is no list of objects", code=Code.ROW_FORM)
    return [
        dict(each) if "function" in each else {"type": "function", "function": dict(each)}
        for each in given
    ]
