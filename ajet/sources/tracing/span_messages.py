"""Finds the chat messages in a span's attributes, in any of the usual conventions.

    OpenInference   llm.input_messages.0.message.role, .content, .contents.0.message_content.text,
                    .tool_calls.0.tool_call.function.name; llm.output_messages.…
    OpenTelemetry   gen_ai.input.messages, gen_ai.output.messages, gen_ai.system_instructions
                    ([{"role", "parts": [{"type": "text", "content"}]}], also as a JSON string)
    older           gen_ai.prompt.0.role, .content; gen_ai.completion.0.…
    any span        input.value and output.value: text, or JSON with `messages` or a question

`nest` turns dotted names into objects first, so attributes may be flattened to any depth. Images,
sound and files are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ajet.core.config.nested import get_key
from ajet.core.task.reader import QUERY_FIELDS
from ajet.sources.tracing.conversation import Message

TEXT_FIELDS = ("input", *QUERY_FIELDS, "output", "answer", "content", "text")


def nest(value: Any) -> Any:
    """Returns ``{"a.b": 1}`` as ``{"a": {"b": 1}}``, at every depth."""
    if isinstance(value, list):
        return [nest(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    root: dict[str, Any] = {}
    for key in sorted(map(str, value)):  # `input` before `input.value`, which replaces it
        *path, last = key.split(".")
        inner = root
        for part in path:
            if not isinstance(inner.get(part), dict):
                inner[part] = {}
            inner = inner[part]
        inner[last] = nest(value[key])
    return root


def call_messages(attributes: Mapping[str, Any]) -> list[Message]:
    """Returns all messages of one model call, its answer last; nothing for other spans."""
    # Instrumentation may write several conventions at once: the first one wins.
    for inputs, outputs in (
        ("llm.input_messages", "llm.output_messages"),
        ("gen_ai.input.messages", "gen_ai.output.messages"),
        ("gen_ai.prompt", "gen_ai.completion"),
    ):
        before, after = (
            _messages(get_key(attributes, inputs)),
            _messages(get_key(attributes, outputs)),
        )
        if before and after:
            blocks = _items(_parsed(get_key(attributes, "gen_ai.system_instructions")))
            text = "".join(_part_text(block) for block in blocks)
            system = [{"role": "system", "content": text}] if text else []
            return [*system, *before, after[0]]
    return []


def value_messages(attributes: Mapping[str, Any]) -> list[Message]:
    """Returns the span's input and output as a question and its answer."""
    inputs, outputs = get_key(attributes, "input.value"), get_key(attributes, "output.value")
    before, after = _chat(inputs, "user"), _chat(outputs, "assistant")
    return [*before, after[-1]] if before and after else []


def _messages(node: Any) -> list[Message]:
    """Returns the messages of a list, of an object with indices as keys, or of a single message."""
    node = _parsed(node)
    if isinstance(node, Mapping) and ("role" in node or "parts" in node):
        node = [node]
    return [message for item in _items(node) if (message := _message(item)) is not None]


def _message(node: Any) -> Message | None:
    node = node.get("message", node) if isinstance(node, Mapping) else None
    if not isinstance(node, Mapping) or not isinstance(node.get("role"), str):
        return None
    message: Message = {"role": node["role"], "content": _content(node)}
    blocks = _items(node.get("parts"))
    calls = [*map(_call, _items(node.get("tool_calls")))]
    calls += [_call(part) for part in blocks if get_key(part, "type") == "tool_call"]
    if calls:
        message["tool_calls"] = calls
    answers = [part for part in blocks if get_key(part, "type") == "tool_call_response"]
    if answers:
        results = (part.get("response", part.get("result", "")) for part in answers)
        message["content"] = "".join(map(_as_text, results))
    call_id = node.get("tool_call_id") or next((part.get("id") for part in answers), None)
    return message | ({"tool_call_id": call_id} if call_id else {})


def _content(node: Mapping[str, Any]) -> str:
    if "parts" in node:
        return "".join(_part_text(part) for part in _items(node["parts"]))
    if "contents" in node:
        return "".join(_part_text(part) for part in _items(node["contents"]))
    content = node.get("content")
    return "".join(map(_part_text, content)) if isinstance(content, list) else _as_text(content)


def _part_text(part: Any) -> str:
    part = part.get("message_content", part) if isinstance(part, Mapping) else {"text": part}
    if part.get("type", "text") != "text":
        return ""
    return _as_text(part.get("text") or part.get("content"))


def _call(node: Any) -> dict[str, Any]:
    node = node.get("tool_call", node) if isinstance(node, Mapping) else {}
    function = node["function"] if isinstance(node.get("function"), Mapping) else node
    arguments = function.get("arguments")
    return {
        "id": _as_text(node.get("id")),
        "type": "function",
        "function": {"name": _as_text(function.get("name")), "arguments": _as_text(arguments)},
    }


def _chat(value: Any, role: str) -> list[Message]:
    """Returns the chat messages in a span's value, or its text as one message with this role."""
    inner = _parsed(value)
    if isinstance(inner, Mapping):
        for name in ("messages", "choices"):
            if messages := _messages(inner.get(name)):
                return messages
        inner = next((inner[name] for name in TEXT_FIELDS if inner.get(name)), None)
    if messages := _messages(inner):
        return messages
    text = inner if isinstance(inner, str) else value
    return [{"role": role, "content": text}] if isinstance(text, str) and text.strip() else []


def _parsed(value: Any) -> Any:
    """Returns the value of a JSON text, or the value itself if it is something else."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return nest(json.loads(value))
    except ValueError:
        return value


def _items(node: Any) -> list[Any]:
    """Returns the values of a list, or of an object whose keys are indices."""
    if isinstance(node, Mapping) and node and all(str(key).isdecimal() for key in node):
        return [node[key] for key in sorted(node, key=int)]
    return node if isinstance(node, list) else []


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
