"""Turns rows of a supervised data set into tasks whose messages are a whole conversation.

    {"messages": [{"role": "user", …}, {"role": "assistant", …}], "tools": […]}         OpenAI
    {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", …}]}            ShareGPT
    {"prompt": "…" or messages, "completion": "…" or messages}                          TRL
    {"instruction": "…", "input": "…", "output": "…", "history": [["…", "…"]]}          Alpaca

In each form `system` may have the system message, `images` what the messages show (row_images.py),
and `tools` (or `functions`) the tools, as a list or as JSON text. An assistant message with
`"weight": 0` (ms-swift's `"loss": false`, axolotl's `"train": false`) is context, as are those of a
`prompt`; one that `ajet data distill` wrote has the `token_ids` that were sampled.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ajet.core.errors import DataError, RowError
from ajet.core.errors.codes import Code
from ajet.core.images.store import num_images
from ajet.core.task.chat_messages import shown_text
from ajet.core.task.reader import MAX_ID_LENGTH, check_split
from ajet.core.task.row_images import COLUMNS, OTHER_MARKS, with_images
from ajet.core.task.row_messages import (
    MASKS,
    are_messages,
    parsed_messages,
    row_messages,
    with_system,
)
from ajet.core.task.task import Task
from ajet.core.text.plain_value import plain_text

SHAPES = "messages, conversations, or prompt and completion, or instruction and output"
FORMS = (
    ("messages",),
    ("conversations",),
    ("prompt", "completion"),
    ("instruction", "output", "input", "history"),
)
"""The fields of each form. The first two (or the only one) are required."""
MESSAGE_FIELDS = {
    *("role", "content", "name", "tool_calls", "tool_call_id", "function_call", "refusal"),
    *("reasoning_content", "reasoning", "thinking", "weight", "token_ids", "from", "value", *MASKS),
}
COMMON_FIELDS = ("system", "tools", "functions", *COLUMNS, *OTHER_MARKS, "task_id", "vocabulary")


def chat_tasks(
    rows: Iterable[Mapping[str, Any]],
    *,
    split: str,
    source: str,
    train_on: str,
    folder: Path | None = None,
) -> list[Task]:
    """Returns one task for each row, whose images may be files of `folder`. Raises DataError for a
    row that is not a conversation, or has no assistant message to train."""
    tasks = []
    for index, row in enumerate(rows):
        location = f"{source}: row {index + 1}"
        messages = with_weights(_messages(row, location), train_on)
        tasks.append(conversation_task(row, messages, f"{split}-{index}", location, folder))
    check_split(tasks, split=split, source=source)
    return tasks


def conversation_task(
    row: Mapping[str, Any],
    messages: list[dict[str, Any]],
    default_id: str,
    location: str,
    folder: Path | None,
) -> Task:
    """Returns the task of a conversation that a row has, with the row's system message, images and
    tools."""
    messages = with_system(messages, row.get("system"), location)
    messages = with_images(messages, row, location, folder)
    trained = [index for index, message in enumerate(messages) if is_trained(message)]
    if not trained:
        raise DataError(
            f"{location}: none of its messages is an assistant's with a weight",
            code=Code.ROW_NOT_TRAINABLE,
        )
    drawn = next((index for index in trained if num_images(messages[index])), None)
    if drawn is not None:
        raise DataError(
            f"{location}: messages[{drawn}], an assistant's, shows an image, and only text can be "
            'trained; give it "weight": 0',
            code=Code.ROW_NOT_TRAINABLE,
        )
    empty = next((index for index in trained if _is_empty(messages[index])), None)
    if empty is not None:
        raise DataError(
            f"{location}: messages[{empty}], an assistant's, has neither text nor a tool call; "
            'leave it out, or give it "weight": 0',
            code=Code.ROW_NOT_TRAINABLE,
        )
    questions = [message["content"] for message in messages if message["role"] == "user"]
    task_id = row.get("task_id")
    return Task(
        task_id=default_id if task_id is None else plain_text(task_id, MAX_ID_LENGTH),
        main_query=shown_text(questions[0]) if questions else "",
        init_messages=messages,
        metadata={"tools": _tools(row, location), "vocabulary": row.get("vocabulary")},
    )


def is_trained(message: Mapping[str, Any]) -> bool:
    """Tells whether a message of a row is a reply that is trained."""
    return message["role"] == "assistant" and message.get("weight") != 0


def _messages(row: Mapping[str, Any], location: str) -> list[dict[str, Any]]:
    """Returns the row's conversation in OpenAI's form."""
    if not isinstance(row, Mapping):
        raise RowError(f"{location} is a {type(row).__name__}, not an object")
    match _form(row):
        case ("messages" | "conversations" as name,):
            return row_messages(row[name], f"{location}: {name}")
        case ("prompt", "completion"):
            prompt = as_messages(row["prompt"], "user", f"{location}: prompt")
            if prompt[-1]["role"] == "assistant":
                raise RowError(
                    f"{location}: the prompt ends with an assistant's message, and a reply begins "
                    "where the model begins: put its text before the completion's"
                )
            completion = as_messages(row["completion"], "assistant", f"{location}: completion")
            return untrained(prompt) + completion  # TRL trains the completion alone
        case ("instruction", *_):
            return _from_instruction(row, location)
    raise RowError(
        f"{location} has neither {SHAPES}; it has {', '.join(map(str, row)) or 'no field'}"
    )


def _form(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the fields of the first form that the row has."""
    present = {name for name, value in row.items() if value is not None}
    return next((form for form in FORMS if present.issuperset(form[:2])), ())


def unread_chat_fields(row: Mapping[str, Any]) -> set[str]:
    """Returns the fields of the row and of its messages that are not null and not read."""
    present = {name for name, value in row.items() if value is not None}
    form = _form(row)
    unread = present.difference(form, COMMON_FIELDS)
    for name in form:
        for message in row[name] if are_messages(row.get(name)) else ():
            fields = (field for field, value in message.items() if value is not None)
            unread.update(f"{name}.{field}" for field in fields if field not in MESSAGE_FIELDS)
    return unread


def as_messages(value: Any, role: str, location: str) -> list[dict[str, Any]]:
    """Returns messages, or a text as one message of this role, in OpenAI's form."""
    value = parsed_messages(value, location)
    return row_messages(
        [{"role": role, "content": value}] if isinstance(value, str) else value, location
    )


def _from_instruction(row: Mapping[str, Any], location: str) -> list[dict[str, Any]]:
    """Returns the conversation of a row in Alpaca's form, as LLaMA-Factory reads it."""
    history = row.get("history") or []
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in history):
        raise RowError(f"{location}: history is not a list of pairs of a question and its reply")
    question_parts = [row["instruction"], row.get("input")]
    if not all(isinstance(text, str | None) for text in question_parts):
        raise RowError(f"{location}: instruction or input is not text")
    pairs = [*history, ("\n".join(text for text in question_parts if text), row["output"])]
    texts = [text for pair in pairs for text in pair]
    roles = ["user", "assistant"] * len(pairs)
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    return row_messages(messages, location)


def untrained(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the messages, with weight 0 for each reply."""
    return [
        {**message, "weight": 0} if message["role"] == "assistant" else message
        for message in messages
    ]


def with_weights(messages: list[dict[str, Any]], train_on: str) -> list[dict[str, Any]]:
    """Returns the messages; with `train_on: last` the replies before the last have weight 0."""
    if train_on == "all":
        return messages
    replies = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    return [
        {**message, "weight": 0} if index in replies[:-1] else message
        for index, message in enumerate(messages)
    ]


def _is_empty(message: Mapping[str, Any]) -> bool:
    """Tells whether a reply has nothing that the model could be trained to write."""
    texts = [message.get(name) for name in ("content", "reasoning_content")]
    has_text = any(isinstance(text, str) and text.strip() for text in texts)
    return not has_text and not message.get("tool_calls") and message.get("token_ids") is None


def _tools(row: Mapping[str, Any], location: str) -> list[dict[str, Any]] | None:
    """Returns the tools in OpenAI's form; a bare function becomes a tool."""
    names = [name for name in ("tools", "functions") if row.get(name)]
    if len(names) == 2:
        raise RowError(f"{location} has tools and functions; keep tools")
    if not names:
        return None
    tools = _parsed(row[names[0]], f"{location}: {names[0]}")
    if not tools:
        return None
    if not are_messages(tools):
        raise RowError(f"{location}: {names[0]} is not a list of objects")
    return [_tool(tool, f"{location}: {names[0]}") for tool in tools]


def _tool(spec: Mapping[str, Any], location: str) -> dict[str, Any]:
    tool = dict(spec)
    if "function" not in spec:  # a function alone, as in Anthropic's API and in OpenAI's Responses
        fields = {name: value for name, value in spec.items() if name != "type"}
        if "input_schema" in fields:
            fields["parameters"] = fields.pop("input_schema")
        tool = {"type": "function", "function": fields}
    function = tool["function"]
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RowError(f"{location}: a tool has no function with a name")
    if isinstance(function.get("parameters"), str):
        parameters = _parsed(
            function["parameters"], f"{location}: parameters of {function['name']}"
        )
        return {**tool, "function": {**function, "parameters": parameters}}
    return tool


def _parsed(value: Any, location: str) -> Any:
    """Returns the value of JSON text, and other values unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else None
    except ValueError as error:
        raise RowError(f"{location} is not valid JSON: {error}") from error
