"""Sends spans over OTLP (HTTP, protobuf) to a collector, Jaeger, Tempo, Phoenix or any other
receiver. Messages are sent as JSON in the form of OpenTelemetry's conventions
(`gen_ai.input.messages`, …).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ajet.core.errors import OptionError, PackageMissing, TraceError
from ajet.core.text.error_text import extra_advice
from ajet.read.traces.spans import RunFacts, Span


class OtlpTarget:
    name = "otlp"

    def __init__(self, run: RunFacts, address: str | None) -> None:
        """`address` is the receiver's base address, such as http://localhost:4318; by default that
        of OpenTelemetry's variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_HEADERS`,
        …)."""
        if address is not None and not address.startswith(("http://", "https://")):
            raise OptionError(
                f"--otlp {address}: write the receiver's address, as http://localhost:4318"
            )
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ModuleNotFoundError as error:
            raise PackageMissing(
                f"OTLP needs a package that is not installed; {extra_advice('opentelemetry')}"
            ) from error
        self._resource = Resource.create({"service.name": "ajet", "ajet.run_id": run.run_id})
        self._scope = InstrumentationScope("ajet.read.traces")
        endpoint = None if address is None else f"{address.rstrip('/')}/v1/traces"
        self._exporter = OTLPSpanExporter(endpoint=endpoint)

    def send(self, spans: Sequence[Span]) -> None:
        """Sends the spans of episodes. Raises `TraceError` if the receiver does not accept them."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        if self._exporter.export([self._readable(span) for span in spans]) is not (
            SpanExportResult.SUCCESS
        ):
            raise TraceError(
                f"{self._exporter._endpoint} does not take spans: start a receiver there, or name "
                "another with --otlp or OTEL_EXPORTER_OTLP_ENDPOINT"
            )

    def close(self) -> None:
        self._exporter.shutdown()

    def _readable(self, span: Span) -> Any:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.status import Status, StatusCode

        error = span.error
        return ReadableSpan(
            span.name,
            context=_context(span.trace_id, span.span_id),
            parent=_context(span.trace_id, span.parent_id) if span.parent_id else None,
            resource=self._resource,
            attributes={**span.attributes, **_content(span)},
            kind=SpanKind.CLIENT if span.category == "model" else SpanKind.INTERNAL,
            status=Status(StatusCode.OK) if error is None else Status(StatusCode.ERROR, error),
            start_time=int(span.started_s * 1e9),
            end_time=int(span.ended_s * 1e9),
            instrumentation_scope=self._scope,
        )


def _context(trace_id: int, span_id: int) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(1))


def _content(span: Span) -> dict[str, str]:
    """Returns messages, arguments and results, in the attributes of the conventions."""
    if span.category == "model":
        reply = {**span.outputs, "role": "assistant"}
        reasons: Any = span.attributes["gen_ai.response.finish_reasons"]
        output = _message(reply) | {"finish_reason": reasons[0]}
        return {
            "gen_ai.input.messages": _json([_message(message) for message in span.inputs]),
            "gen_ai.output.messages": _json([output]),
        }
    # Kinds without a name here have no content attributes in the conventions.
    names = {
        "episode": ("ajet.task", "ajet.final_answer"),
        "tool": ("gen_ai.tool.call.arguments", "gen_ai.tool.call.result"),
        "judge": ("", "gen_ai.evaluation.explanation"),
    }.get(span.category, ("", ""))
    values = zip(names, (span.inputs, span.outputs), strict=True)
    return {name: _text(value) for name, value in values if name and value is not None}


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a chat message in the form of the conventions: a role and parts."""
    content = message.get("content")
    if message.get("role") == "tool":
        response = {"type": "tool_call_response", "id": message.get("tool_call_id")}
        return {"role": "tool", "parts": [response | {"response": content}]}
    content_parts: list[dict[str, Any]] = (
        [{"type": "text", "content": _text(content)}] if content else []
    )
    for call in message.get("tool_calls") or ():
        function = call.get("function", {}) if isinstance(call, Mapping) else {}
        content_parts.append(
            {
                "type": "tool_call",
                "id": call.get("id"),
                "name": function.get("name"),
                "arguments": function.get("arguments"),
            }
        )
    return {"role": message.get("role", "user"), "parts": content_parts}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
