"""Writes traces into MLflow's store, where `mlflow ui` shows each episode as a tree of spans.
MLflow assigns the ids of traces, so a trace that is sent twice is stored twice.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ajet.core.errors import PackageMissing, TraceError
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.trackers import choose_mlflow_experiment
from ajet.core.text.error_text import extra_advice
from ajet.read.traces.spans import Span

SPANS_AT_ONCE = "500"
"""Spans in one transaction, unless MLflow's environment variable says otherwise: with its default
an episode of the demo takes 33 ms of CPU instead of 20."""
TYPES = {
    "episode": "AGENT",
    "model": "CHAT_MODEL",
    "tool": "TOOL",
    "environment": "TOOL",
    "judge": "EVALUATOR",
}
TOKENS = ("input", "output")


class MlflowTarget:
    """Writes spans into the store at `uri`, of `MLFLOW_TRACKING_URI`, or the run's
    ``logs/mlflow.db``, which the logger `mlflow` also uses; the experiment is the project's. The
    store's errors become `TraceError`."""

    name = "mlflow"

    def __init__(self, folder: RunFolder, project: str, uri: str | None) -> None:
        os.environ.setdefault("MLFLOW_ASYNC_TRACE_LOGGING_MAX_SPAN_BATCH_SIZE", SPANS_AT_ONCE)
        try:
            self._mlflow: Any = import_module("mlflow")
        except ModuleNotFoundError as error:
            raise PackageMissing(
                f"MLflow is not installed; {extra_advice('mlflow')} or choose --otlp"
            ) from error
        try:
            self._experiment_id = choose_mlflow_experiment(self._mlflow, folder, project, uri)
        except self._mlflow.MlflowException as error:
            raise self._fault(error) from error

    def send(self, spans: Sequence[Span]) -> None:
        traces: dict[int, list[Span]] = {}
        for span in spans:
            traces.setdefault(span.trace_id, []).append(span)
        try:
            # The spans of an episode come root first.
            for episode, *calls in traces.values():
                root = self._begin(episode, None)
                for call in calls:
                    _end(self._begin(call, root), call)
                _end(root, episode)
            self._mlflow.flush_trace_async_logging()
        except self._mlflow.MlflowException as error:
            raise self._fault(error) from error

    def close(self) -> None:
        self._mlflow.flush_trace_async_logging(terminate=True)

    def _begin(self, span: Span, parent: Any) -> Any:
        attributes, extra = dict[str, Any](span.attributes), dict[str, Any]()
        if span.category == "model":  # what MLflow sums over a trace
            usage = {f"{way}_tokens": attributes[f"gen_ai.usage.{way}_tokens"] for way in TOKENS}
            usage["total_tokens"] = sum(usage.values())
            attributes["mlflow.chat.tokenUsage"] = usage
        if parent is None:
            names = ("ajet.step", "ajet.mode", "ajet.status", "ajet.task_id", "ajet.group_id")
            tags = {name: str(span.attributes[name]) for name in names if name in span.attributes}
            tags |= {"ajet.episode_id": str(span.attributes["gen_ai.conversation.id"])}
            extra = {"experiment_id": self._experiment_id, "tags": tags}
        return self._mlflow.start_span_no_context(
            span.name,
            span_type=TYPES[span.category],
            parent_span=parent,
            inputs=span.inputs,
            attributes=attributes,
            start_time_ns=int(span.started_s * 1e9),
            **extra,
        )

    def _fault(self, error: Exception) -> TraceError:
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        return TraceError(f"MLflow at {self._mlflow.get_tracking_uri()}: {first_line}")


def _end(begun: Any, span: Span) -> None:
    status = "OK" if span.error is None else "ERROR"
    begun.end(outputs=span.outputs, status=status, end_time_ns=int(span.ended_s * 1e9))
