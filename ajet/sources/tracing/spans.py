"""Reads spans, and finds the conversation that a trace recorded.

    {"resourceSpans": [{"scopeSpans": [{"spans": […]}]}]}          OTLP JSON, a batch a line
    {"name", "context": {"trace_id", "span_id"}, "attributes"}     Phoenix, a span a line
    {"context.trace_id": …, "attributes.input.value": …}           the same, as a table's row

One trace is one conversation: that of the model call with the most messages whose reply is text
(the last such call, if several); if no call was recorded, the input and output of the outermost
span.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ajet.core.config.nested import get_key
from ajet.core.config.tracing import parse_iso_time
from ajet.sources.tracing.conversation import Conversation, Message, conversation_of
from ajet.sources.tracing.span_messages import call_messages, nest, value_messages

MODEL_NAMES = ("llm.model_name", "gen_ai.response.model", "gen_ai.request.model")
ANNOTATIONS = (
    ("annotations", "annotation"),
    ("evaluations", "evaluation"),
    ("trace.annotations", "annotation"),
    ("trace.evaluations", "evaluation"),
)
NANOSECONDS = 1e9


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
    """Yields the spans of an object: those of an OTLP batch, or the object if it is a span."""
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
