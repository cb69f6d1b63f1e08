"""Writes spans as a trace in Chrome's JSON format, which https://ui.perfetto.dev and
chrome://tracing open: each row is a slot in which one episode after another ran.

Above them are the phases of each step (rollout, update, sync). Only their lengths are recorded, so
they are drawn one after the other, the last one ending when the step was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ajet.read.traces.spans import Span

PHASES = ("rollout/seconds", "update/seconds", "sync/seconds")
_RUN, _EPISODES = 1, 2
Event = dict[str, Any]


def chrome_trace(
    episodes: Sequence[Sequence[Span]], steps: Iterable[Mapping[str, float]]
) -> dict[str, Any]:
    """Returns the trace of episodes, each with its root span first, and of the steps' metrics."""
    events = [
        _named("process_name", _RUN, 0, "steps"),
        _named("process_name", _EPISODES, 0, "episodes"),
    ]
    for metrics in steps:
        events += _phases(metrics)
    free_from: list[float] = []  # by row: when its last episode ended
    for spans in sorted(episodes, key=lambda spans: spans[0].started_s):
        rows = (row for row, end_s in enumerate(free_from) if end_s <= spans[0].started_s)
        row = next(rows, len(free_from))
        if row == len(free_from):
            free_from.append(0.0)
            events.append(_named("thread_name", _EPISODES, row, f"slot {row}"))
        free_from[row] = max(span.ended_s for span in spans)
        events += [_event(span, row) for span in spans]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _event(span: Span, row: int) -> Event:
    contents = {"inputs": span.inputs, "outputs": span.outputs, "error": span.error}
    return {
        "ph": "X",
        "name": str(span.attributes.get("gen_ai.conversation.id", span.name)),
        "cat": span.category,
        "pid": _EPISODES,
        "tid": row,
        "ts": span.started_s * 1e6,
        "dur": (span.ended_s - span.started_s) * 1e6,
        "args": span.attributes
        | {name: value for name, value in contents.items() if value is not None},
    }


def _phases(metrics: Mapping[str, float]) -> list[Event]:
    lengths = {name: metrics[name] for name in PHASES if metrics.get(name)}
    # The row's time is when the step was recorded, after its last phase.
    at_s = metrics["time"] - sum(lengths.values())
    events: list[Event] = []
    for name, seconds in lengths.items():
        events.append(
            {
                "ph": "X",
                "name": name.removesuffix("/seconds"),
                "cat": "phase",
                "pid": _RUN,
                "tid": 0,
                "ts": at_s * 1e6,
                "dur": seconds * 1e6,
                "args": {"step": metrics["step"]},
            }
        )
        at_s += seconds
    return events


def _named(event_name: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": event_name, "pid": pid, "tid": tid, "args": {"name": name}}
