"""Reads the chat messages that a row has, in OpenAI's form or in ShareGPT's.

    {"role": "user", "content": "2+2?"}, {"role": "assistant", …}         OpenAI
    {"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}     ShareGPT
    {"from": "function_call", "value": CALLS}, {"from": "observation", …} LLaMA-Factory's tool calls

CALLS is the JSON text of `{"name": …, "arguments": {…}}`, or of a list of such objects. The list of
messages may be JSON text too, as in a column of text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ajet.core.errors import RowError
from ajet.core.task.chat_messages import (
    checked_messages,
    is_shown,
    joined_text,
    parsed_arguments,
    shown_text,
    why_not_text,
)

SHAREGPT_ROLES = {
    "system": "system",
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "assistant", "function_call", "tool_call"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function_response", "tool_response"), "function"),
}
"""Maps ShareGPT's `from` to a role. A tool's result has no call id, as in OpenAI's former role
"function", so it belongs to the first call without a result."""
MASKS = ("loss", "train", "training")
"""What ms-swift and axolotl call a message's weight, true or false."""


_MESSAGES_AS_TEXT = re.compile(r"""\s*\[\s*\{\s*['"](?:role|content|from|value)['"]\s*:""")


def parsed_messages(value: Any, location: str) -> Any:
    """Returns the messages of JSON text, and any other value unchanged. Raises RowError for text
    that is nearly so, such as Python's, which pandas writes into a CSV file."""
    if not isinstance(value, str) or not _MESSAGES_AS_TEXT.match(value):
        return value
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise RowError(
            f"{location}: its text begins as messages do and is not JSON: write it with json.dumps"
        ) from error
    is_chat = all(isinstance(each, dict) and each.keys() & {"role", "from"} for each in parsed)
    return parsed if is_chat else value


def are_messages(value: Any) -> bool:
    """Tells whether the value is a list of objects, as chat messages are."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return False
    return all(isinstance(message, Mapping) for message in value)


def row_messages(value: Any, location: str) -> list[dict[str, Any]]:
    """Returns the messages in OpenAI's form, with text, parts of text and images, or None as their
    content. Raises DataError if the value is not a list of such messages, a user's message is
    empty, or a call's arguments are not an object."""
    value = parsed_messages(value, location)
    if not value or not are_messages(value):
        raise RowError(f"{location} is not a list of messages")
    try:
        plain = [
            message
            if "role" in message or "from" not in message
            else _from_sharegpt(message, index, location)
            for index, message in enumerate(value)
        ]
        messages = checked_messages(map(_weighted, plain), location)
        for index, message in enumerate(messages):
            if "content" in message:  # AgentScope's is an empty list where a reply is only calls
                message["content"] = joined_text(message["content"])
            _check(message, f"{location}[{index}]")
    except ValueError as error:
        raise RowError(str(error)) from error
    # Null fields have been removed; readers of tasks expect every message to have content.
    return [{"content": None, **message} for message in messages]


def with_system(messages: list[dict[str, Any]], system: Any, location: str) -> list[dict[str, Any]]:
    """Returns the messages with the text of the row's field `system` as their first one."""
    if system is None or (isinstance(system, str) and not system.strip()):
        return messages
    if not isinstance(system, str):
        raise RowError(f"{location}: system is not text")
    there = [message["content"] for message in messages if message["role"] == "system"]
    if any(text != system for text in there):
        raise RowError(
            f"{location}: system and a system message of its conversation differ; keep one of them"
        )
    return messages if there else [{"role": "system", "content": system}, *messages]


def _from_sharegpt(message: Mapping[str, Any], index: int, location: str) -> dict[str, Any]:
    source, value = message.get("from"), message.get("value")
    role = SHAREGPT_ROLES.get(str(source))
    if role is None:
        raise ValueError(
            f"{location}[{index}]: a message is from {source!r}; there are "
            f"{', '.join(SHAREGPT_ROLES)}"
        )
    rest = {key: message[key] for key in message if key not in ("from", "value")}
    if source in ("function_call", "tool_call"):
        return {**rest, "role": role, "tool_calls": _calls(value, index, location)}
    return {**rest, "role": role, "content": value}


def _weighted(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the message with the mask of another trainer as its weight."""
    mask = next((name for name in MASKS if message.get(name) is not None), None)
    if mask is None or message.get("weight") is not None:
        return message
    return {key: message[key] for key in message if key != mask} | {"weight": message[mask]}


def _calls(value: Any, index: int, location: str) -> list[dict[str, Any]]:
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{location}[{index}]: a function call is not JSON; write "
            '{"name": …, "arguments": {…}}'
        ) from error
    calls = parsed if isinstance(parsed, list) else [parsed]
    if not calls or not all(isinstance(call, Mapping) for call in calls):
        raise ValueError(
            f"{location}[{index}]: a function call is not an object, or a list of them"
        )
    return [{"id": f"call_{index}_{order}", **call} for order, call in enumerate(calls)]


def _check(message: Mapping[str, Any], location: str) -> None:
    content, role = message.get("content"), message["role"]
    if content is not None and not is_shown(content):
        raise ValueError(
            f"{location}: its content is not text ({why_not_text(content, with_images=True)}): the "
            "models trained here read text and images alone"
        )
    if role == "user" and not shown_text(content).strip():
        raise ValueError(f"{location}: the user's message is empty")
    if message.get("weight", 1) not in (0, 1):
        raise ValueError(f"{location}: its weight is {message['weight']!r}; give 0 or 1")
    for call in message.get("tool_calls", ()):
        function = call["function"]
        if not isinstance(parsed_arguments(function.get("arguments")), dict):
            raise ValueError(
                f"{location}: the arguments of its call of {function['name']} are not a JSON object"
            )
