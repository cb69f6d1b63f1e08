"""Reads spans, and finds the conversation that a trace recorded: that of the model call with the
most messages whose reply is text (the last such call, if several); if no call was recorded, the
input and output of the outermost span.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ajet.core.config.nested import get_key
from ajet.core.config.tracing import parse_iso_time
from ajet.core.task.reader import QUERY_FIELDS
from ajet.sources.tracing.conversation import Conversation, Message, conversation_of

MODEL_NAMES = ("llm.model_name", "gen_ai.response.model", "gen_ai.request.model")
ANNOTATIONS = (
    ("annotations", "annotation"),
    ("evaluations", "evaluation"),
    ("trace.annotations", "annotation"),
    ("trace.evaluations", "evaluation"),
)
NANOSECONDS = 1e9
TEXT_FIELDS = ("input", *QUERY_FIELDS, "output", "answer", "content", "text")
MESSAGE_KEYS = (
    # OpenInference: .0.message.role, .content, .contents.0.message_content.text,
    # .tool_calls.0.tool_call.function.name
    ("llm.input_messages", "llm.output_messages"),
    # OpenTelemetry: [{"role", "parts": [{"type": "text", "content"}]}], also as a JSON string, with
    # gen_ai.system_instructions
    ("gen_ai.input.messages", "gen_ai.output.messages"),
    # Older: .0.role, .content
    ("gen_ai.prompt", "gen_ai.completion"),
)
"""The attributes with a model call's messages and its reply. Instrumentation may write several
conventions at once: the first one wins."""


@dataclass(slots=True)
class Span:
    """One step of a trace. `annotations` are (name, score, label), from people or judges."""

    trace_id: str
    span_id: str
    parent_id: str
    ended: datetime | None
    attributes: dict[str, Any]
    annotations: list[tuple[str, float | None, str | None]] = field(default_factory=list)

    @property
    def model(self) -> str | None:
        names = (get_key(self.attributes, path) for path in MODEL_NAMES)
        return next((name for name in names if isinstance(name, str)), None)


_Call = tuple[Span, list[Message]]


def spans_in(record: Mapping[str, Any]) -> Iterator[Span]:
    """Yields the spans of an object: those of an OTLP batch, or the object if it is a span.

    {"resourceSpans": [{"scopeSpans": [{"spans": […]}]}]}          OTLP JSON, a batch a line
    {"name", "context": {"trace_id", "span_id"}, "attributes"}     Phoenix, a span a line
    {"context.trace_id": …, "attributes.input.value": …}           the same, as a table's row
    """
    if "resourceSpans" in record:
        for resource in _values(record["resourceSpans"]):
            for scope in _values(get_key(resource, "scopeSpans")):
                for span in _values(get_key(scope, "spans")):
                    yield _span({**span, "attributes": _plain(span.get("attributes"))})
    elif "attributes" in record or any(key.startswith("attributes.") for key in record):
        yield _span(record)


def conversations_in(spans: Iterable[Span]) -> tuple[list[Conversation], int]:
    """Returns the conversations, at most one per trace, and the number of traces without one."""
    traces: dict[str, list[Span]] = {}
    for span in spans:
        traces.setdefault(span.trace_id or f"span {span.span_id}", []).append(span)
    conversations = [_conversation(trace_id, traces[trace_id]) for trace_id in traces]
    return [c for c in conversations if c is not None], conversations.count(None)


def _conversation(trace_id: str, spans: list[Span]) -> Conversation | None:
    calls = _with_conversation((span, call_messages(span.attributes)) for span in spans)
    if not calls:
        # No span records a call of a model, so take the outermost span's input and output.
        span_ids = {span.span_id for span in spans}
        outer = [span for span in spans if span.parent_id not in span_ids]
        calls = _with_conversation((span, value_messages(span.attributes)) for span in outer)
    if not calls:
        return None
    span, messages = max(calls, key=_rank)
    notes = [note for span_ in spans for note in span_.annotations]
    return conversation_of(
        trace_id,
        messages,
        model=span.model,
        ended=span.ended,
        scores={name: score for name, score, _ in notes if score is not None},
        labels={name: label for name, _, label in notes if label is not None},
    )


def _with_conversation(calls: Iterable[_Call]) -> list[_Call]:
    return [(span, messages) for span, messages in calls if conversation_of("", messages)]


def _rank(call: _Call) -> tuple[int, float, str]:
    span, messages = call
    return len(messages), span.ended.timestamp() if span.ended else -math.inf, span.span_id


def _span(record: Mapping[str, Any]) -> Span:
    nested = nest(record)
    attributes = nested.get("attributes")
    attributes = attributes if isinstance(attributes, dict) else {}
    ids = nested | (nested.get("context") or {})
    span = Span(
        trace_id=_first(ids, "trace_id", "traceId", "trace_rowid"),
        span_id=_first(ids, "span_id", "spanId", "id"),
        parent_id=_first(nested, "parent_id", "parentSpanId", "parent_span_id"),
        ended=parse_time(_first(nested, "end_time", "endTimeUnixNano", "endTime")),
        attributes=attributes,
    )
    for path, name in ANNOTATIONS:
        for node in _values(get_key(attributes, path)):
            add_annotation(span, get_key(node, name) or node)
    return span


def add_annotation(span: Span, note: Any) -> None:
    """Adds `note` if it has a name and, directly or in its `result`, a score or a label."""
    name = get_key(note, "name")
    result = get_key(note, "result") or note
    score, label = get_key(result, "score"), get_key(result, "label")
    is_number = isinstance(score, int | float) and math.isfinite(score)
    if isinstance(name, str) and (is_number or isinstance(label, str)):
        label = label if isinstance(label, str) else None
        span.annotations.append((name, float(score) if is_number else None, label))


def _values(node: Any) -> list[Any]:
    if isinstance(node, Mapping):
        return list(node.values())
    return node if isinstance(node, list) else []


def _first(node: Mapping[str, Any], *names: str) -> str:
    """Returns the first of these fields that has a value, as text, or ""."""
    values = (node.get(name) for name in names)
    return next((str(value) for value in values if value not in (None, "")), "")


def parse_time(text: str) -> datetime | None:
    """Parses ISO 8601, or nanoseconds since 1970; returns None for anything else."""
    try:
        if text.isdecimal():
            return datetime.fromtimestamp(int(text) / NANOSECONDS, UTC)
        return parse_iso_time(text) if text else None
    except (ValueError, OverflowError, OSError):
        return None


def _plain(attributes: Any) -> Any:
    """Returns OTLP's ``[{"key": "k", "value": {"stringValue": "v"}}]`` as ``{"k": "v"}``."""
    if not isinstance(attributes, list):
        return attributes
    pairs = [pair for pair in attributes if isinstance(pair, Mapping) and "key" in pair]
    return {str(pair["key"]): _any_value(pair.get("value")) for pair in pairs}


def _any_value(value: Any) -> Any:
    """Returns an OTLP value. OTLP JSON writes whole numbers as text."""
    if not isinstance(value, Mapping) or not value:
        return None
    type_name, inner = next(iter(value.items()))
    if type_name == "arrayValue":
        return [_any_value(item) for item in inner.get("values", [])]
    if type_name == "kvlistValue":
        return _plain(inner.get("values", []))
    return int(inner) if type_name == "intValue" else inner


def nest(value: Any) -> Any:
    """Returns ``{"a.b": 1}`` as ``{"a": {"b": 1}}``, at every depth, because attributes may be
    flattened to any depth."""
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
    for keys in MESSAGE_KEYS:
        before, after = (_messages(get_key(attributes, key)) for key in keys)
        if before and after:
            blocks = _items(_parsed(get_key(attributes, "gen_ai.system_instructions")))
            text = "".join(_part_text(block) for block in blocks)
            system = [{"role": "system", "content": text}] if text else []
            return [*system, *before, after[0]]
    return []


def value_messages(attributes: Mapping[str, Any]) -> list[Message]:
    """Returns the span's input and output, which are text, or JSON with `messages` or a question,
    as a question and its answer."""
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
    """Returns the text of a message; images, sound and files are left out."""
    for name in ("parts", "contents"):
        if name in node:
            return "".join(map(_part_text, _items(node[name])))
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
