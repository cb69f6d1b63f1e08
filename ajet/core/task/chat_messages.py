"""Brings chat messages to one form, that of OpenAI's API of today, wherever they come from.

    {"role": "assistant", "function_call": {"name": "now", …}}    `tool_calls` with that call
    {"role": "function", "name": "now", "content": "12:00"}       role "tool", with the call's id
    {"role": "developer", …}                                      role "system"
    {"content": [{"type": "text", "text": "a"}, …]}               "a…"
    {"role": "assistant", "refusal": "no"}, a refusal part        "no"
    "arguments": {}, "{}", "" or null                             no arguments
    {"name": "now", "parameters": {…}}, or `args` or `input`      `arguments`
    {"role": "assistant", "reasoning": "hm"}, or `thinking`       `reasoning_content`

Rows of data sets, requests over HTTP and calls of workflows pass through here, so the same message
is the same prompt in all three. Anything else raises a ValueError with its location.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ajet.core.images.forms import is_image_part
from ajet.core.text.plain_value import has_surrogates

IMAGE_MARK = "<image>"
"""Stands for an image in text."""
ARGUMENTS = ("arguments", "parameters", "args", "input")
"""What OpenAI, Llama's models, LangChain and Anthropic call a call's arguments."""
THINKING = ("reasoning_content", "reasoning", "thinking")
"""What vLLM and OpenRouter, and gpt-oss' and AgentScope's messages, call a reply's thinking."""
ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def checked_messages(
    messages: Iterable[Mapping[str, Any]], place: str = "messages"
) -> list[dict[str, Any]]:
    """Returns the messages in the form of the module's docstring, without fields that are null.
    Content that is not text is left unchanged."""
    checked = [_checked(message, f"{place}[{index}]") for index, message in enumerate(messages)]
    return current_form(checked, place)


def current_form(
    messages: Sequence[Mapping[str, Any]], place: str = "messages"
) -> list[dict[str, Any]]:
    """Returns the messages with OpenAI's former function calls as tool calls, a developer's as the
    system's, and thinking under one name."""
    result: list[dict[str, Any]] = []
    # Ids of calls without a result -> names. The former API had no ids: a result belongs to the
    # first call of its name that has none yet, or of any name if the result has none.
    waiting: dict[str, Any] = {}
    for index, message in enumerate(map(dict, messages)):
        refusal = message.pop("refusal", None)
        if refusal and message.get("content"):
            raise ValueError(f"{place}[{index}] has content and a refusal; keep one of them")
        if refusal:
            message["content"] = refusal
        if isinstance(thinking := next(filter(None, map(message.get, THINKING)), None), str):
            for name in THINKING:
                message.pop(name, None)
            message[THINKING[0]] = thinking
        if message.get("role") == "developer":
            message["role"] = "system"
        elif "function_call" in message:
            message = _with_tool_calls(message, f"{place}[{index}]", f"call_{index}_0")
        elif message.get("role") == "function":
            name = message.get("name")
            call_id = next((key for key in waiting if name in (None, waiting[key])), None)
            message = {**message, "role": "tool"}
            if call_id is not None:
                message.setdefault("tool_call_id", call_id)
        for call in message.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, Mapping) else None
            if isinstance(function, Mapping) and call.get("id"):
                waiting[str(call["id"])] = function.get("name")
        waiting.pop(str(message.get("tool_call_id")), None)
        result.append(message)
    return result


def given_arguments(function: Mapping[str, Any]) -> Any:
    """Returns the arguments of a call, under whichever name it has them."""
    return next((function[name] for name in ARGUMENTS if function.get(name) is not None), None)


def parsed_arguments(arguments: Any) -> Any:
    """Returns a call's arguments as a dict: JSON text is parsed; None, blank text and JSON's null
    are no arguments. Anything else, as an escaped half of a character, is returned unchanged."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    if not arguments.strip():
        return {}
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    if value is None:
        return {}
    is_text = isinstance(value, dict) and not ("\\u" in arguments and has_surrogates(value))
    return value if is_text else arguments


def joined_text(content: Any) -> Any:
    """Returns a list of text parts as one text, and other content unchanged. A refusal is text."""
    if isinstance(content, list | tuple) and all(map(_is_text, content)):
        return "".join(part.get("text") or part.get("refusal") or "" for part in content)
    return content


def shown_text(content: Any) -> str:
    """Returns the text of content, with a mark in place of each image."""
    if not isinstance(content, list | tuple):
        return content if isinstance(content, str) else ""
    texts = (IMAGE_MARK if is_image_part(part) else joined_text([part]) for part in content)
    return "".join(text for text in texts if isinstance(text, str))


def is_shown(content: Any) -> bool:
    """Tells whether content is text, or parts that are text and images."""
    if not isinstance(content, list | tuple):
        return isinstance(content, str)
    return all(_is_text(part) or is_image_part(part) for part in content)


def why_not_text(content: Any, *, with_images: bool = False) -> str:
    """Says why content is not text, or neither text nor images."""
    if not isinstance(content, list | tuple):
        return f"it is of type {type(content).__name__}"
    number, part = next(
        (n, part)
        for n, part in enumerate(content, 1)
        if not (_is_text(part) or (with_images and is_image_part(part)))
    )
    if isinstance(part, Mapping):
        return f"its part {number} is of type {part.get('type')!r}"
    return f"its part {number} is a {type(part).__name__}, not an object"


def _checked(message: Mapping[str, Any], location: str) -> dict[str, Any]:
    result = {key: value for key, value in message.items() if value is not None}
    role = result.get("role")
    if role not in ROLES:
        raise ValueError(f"{location}: unknown role {role!r}")
    content = result.get("content", "")
    if not isinstance(content, str | list | tuple):
        raise ValueError(f"{location}: content must be text or a list of parts")
    if content:
        result["content"] = joined_text(content)
    calls = result.pop("tool_calls", None)
    if calls:
        result["tool_calls"] = _checked_calls(calls, location)
    return result


def _checked_calls(calls: Any, location: str) -> list[dict[str, Any]]:
    """Returns the calls in OpenAI's form; some data sets have the function's fields in the call."""
    if not isinstance(calls, list | tuple) or not all(isinstance(call, Mapping) for call in calls):
        raise ValueError(f"{location}.tool_calls must be a list of objects")
    checked = []
    for call in calls:
        function = call.get("function") or call
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ValueError(f"{location}: a tool call has no function with a name")
        if function is call:
            kept = {key: call[key] for key in ("id",) if call.get(key) is not None}
            call = {**kept, "type": "function"}
            function = {"name": function["name"], "arguments": given_arguments(function)}
        elif function.get("arguments") is None and given_arguments(function) is not None:
            others = {key: function[key] for key in function if key not in ARGUMENTS}
            function = {**others, "arguments": given_arguments(function)}
        checked.append({**call, "function": function})
    return checked


def _with_tool_calls(message: dict[str, Any], location: str, call_id: str) -> dict[str, Any]:
    """Returns the message with its `function_call` as its only tool call."""
    call = message.pop("function_call")
    if call is None or (isinstance(call, Mapping) and not any(call.values())):
        return message  # a column of structs has an empty one for a message without a call
    if message.get("role") != "assistant":
        raise ValueError(f"{location}: function_call belongs to an assistant's message")
    if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
        raise ValueError(f"{location}: function_call has no function with a name")
    function = {"name": call["name"], "arguments": given_arguments(call)}
    if not message.get("tool_calls"):
        message["tool_calls"] = [{"id": call_id, "type": "function", "function": function}]
    elif [_meaning(tool_call.get("function")) for tool_call in message["tool_calls"]] != [
        _meaning(function)
    ]:
        raise ValueError(f"{location}: has function_call and other tool_calls; keep one of them")
    return message


def _meaning(function: Any) -> Any:
    if not isinstance(function, Mapping):
        return None
    return function.get("name"), parsed_arguments(function.get("arguments"))


def _is_text(part: Any) -> bool:
    # AgentScope writes an empty text as None, and in a column of structs an image's text is null.
    if not isinstance(part, Mapping) or not part:
        return False
    part_type = part.get("type")
    if part_type is None and part.keys().isdisjoint(("text", "refusal")):
        return False
    if part_type is not None and part_type != "refusal" and not str(part_type).endswith("text"):
        return False
    return all(isinstance(part.get(name), str | None) for name in ("text", "refusal"))
