"""Sends the episodes of a run folder, as spans, to a receiver, also while the run is still going,
or writes them as a file for Perfetto.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from loguru import logger

from ajet.core.errors import DataError, EpisodeNotFound, RecordError, TraceError
from ajet.core.process.interrupt import Interrupt
from ajet.core.record.atomic_file import write_output, write_text_atomically, writing
from ajet.core.record.run_checks import metrics_rows
from ajet.read.episode_reader import EpisodeReader, EpisodeRecord, EpisodeRow
from ajet.read.recorded_run import RecordedRun
from ajet.read.traces.mlflow_store import MlflowTarget
from ajet.read.traces.otlp import OtlpTarget
from ajet.read.traces.spans import RunFacts, Span, episode_spans

POLL_S = 1.0
EPISODES_AT_ONCE = 50
PHASES = ("rollout/seconds", "update/seconds", "sync/seconds")
_RUN, _EPISODES = 1, 2
Event = dict[str, Any]


class TraceTarget(Protocol):
    """Receives spans. `send` raises `TraceError` if they are not accepted."""

    @property
    def name(self) -> str: ...
    def send(self, spans: list[Span]) -> None: ...
    def close(self) -> None: ...


class TraceExport:
    def __init__(self, path: Path) -> None:
        self._run = RecordedRun(path)
        self._folder = self._run.folder
        config = self._run.config
        self._project = config.ajet.project_name
        model = Path(str(config.ajet.model.path)).name
        self._facts = RunFacts(self._folder.run_id(), config.experiment_name, model)
        self._progress = self._folder.logs / "traces.json"

    def target(self, protocol: str, address: str | None) -> TraceTarget:
        """Returns the receiver for `otlp` or `mlflow`; an address of None is its default."""
        if protocol == "otlp":
            return OtlpTarget(self._facts, address)
        return MlflowTarget(self._folder, self._project, address)

    def send(
        self, target: TraceTarget, *, step: int | None = None, episodes: Iterable[str] = ()
    ) -> int:
        """Sends these episodes, or all, or all of a step. Returns their number."""
        number = 0
        with self._run.reader() as reader:
            chosen = self._chosen(reader, step, list(episodes))
            while records := list(islice(chosen, EPISODES_AT_ONCE)):
                self._send(target, records)
                number += len(records)
        return number

    def follow(self, target: TraceTarget, interrupt: Interrupt) -> int:
        """Sends everything that was not sent yet, until the end is requested and nothing is left.
        Returns the number of episodes. A receiver that fails is tried again. Each receiver's
        position is kept in ``logs/traces.json``: after a restart it resumes there, and what was
        sent just before a kill may be sent twice."""
        number = 0
        with self._run.reader() as reader:
            # A run that resumes cuts off its last steps and writes them again, with the same ids.
            last_id = min(self._progress_of_all().get(target.name, 0), reader.last_id())
            self._keep(target.name, last_id)
            while True:
                ends_after_this = interrupt.requested  # before reading, so that nothing is missed
                while rows := reader.newer_than(last_id, EPISODES_AT_ONCE):
                    records = _complete(reader, rows)
                    try:
                        self._send(target, records)
                    except TraceError as error:
                        if ends_after_this:
                            raise
                        logger.warning(f"{error}; trying again")
                        break
                    last_id, number = rows[-1].id, number + len(records)
                    self._keep(target.name, last_id)
                if ends_after_this:
                    return number
                interrupt.wait(POLL_S)

    def write_chrome_trace(
        self, file: Path, *, step: int | None = None, episodes: Iterable[str] = ()
    ) -> int:
        """Writes these episodes for Perfetto, or all, or all of a step. Returns their number."""
        with self._run.reader() as reader:
            records = list(self._chosen(reader, step, list(episodes)))
        steps = {record.row.step for record in records}
        metrics = metrics_rows(self._folder.metrics_jsonl)
        rows = [{**row, "step": at} for at, row in metrics if at in steps and "time" in row]
        write_output(file, json.dumps(chrome_trace(self._spans(records), rows)))
        return len(records)

    def _chosen(
        self, reader: EpisodeReader, step: int | None, names: list[str]
    ) -> Iterator[EpisodeRecord]:
        if names:
            yield from (reader.episode(reader.find(name)) for name in names)
            return
        last_id, is_there = 0, False
        while rows := reader.newer_than(last_id):
            last_id = rows[-1].id
            chosen = [row for row in rows if step in (None, row.step)]
            is_there |= bool(chosen)
            yield from _complete(reader, chosen)
        if step is not None and not is_there:
            raise EpisodeNotFound(
                f"--step {step}: {self._folder.path} has no episode of this step; see ajet view"
            )

    def _send(self, target: TraceTarget, records: Iterable[EpisodeRecord]) -> None:
        target.send([span for spans in self._spans(records) for span in spans])

    def _spans(self, records: Iterable[EpisodeRecord]) -> list[list[Span]]:
        spans = []
        for record in records:
            ended_by_s = record.began_unix_s
            if ended_by_s is None:  # an older run folder: it had ended when its step was recorded
                written_s = self._folder.episodes_db.stat().st_mtime
                ended_by_s = self._recorded_at.get(record.row.step, written_s)
            spans.append(episode_spans(record, self._facts, ended_by_s))
        return spans

    @cached_property
    def _recorded_at(self) -> dict[int, float]:
        """Returns when each step was recorded, in Unix seconds."""
        rows = metrics_rows(self._folder.metrics_jsonl)
        return {step: row["time"] for step, row in rows if "time" in row}

    def _keep(self, name: str, last_id: int) -> None:
        content = {**self._progress_of_all(), name: last_id}
        with writing(self._progress):
            write_text_atomically(self._progress, json.dumps(content))

    def _progress_of_all(self) -> dict[str, int]:
        """Returns the id of the last row that each receiver got."""
        try:
            content: Any = json.loads(self._progress.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise RecordError(
                f"{self._progress} is damaged: {error}; remove it, and all episodes are sent again"
            ) from error
        return content


def _complete(reader: EpisodeReader, rows: list[EpisodeRow]) -> list[EpisodeRecord]:
    """Returns the episodes of the rows, without those that a resuming run has cut off meanwhile."""
    records: list[EpisodeRecord] = []
    for row in rows:
        try:
            records.append(reader.episode(row.episode_id))
        except DataError:
            continue
    return records


def chrome_trace(
    episodes: Sequence[Sequence[Span]], steps: Iterable[Mapping[str, float]]
) -> dict[str, Any]:
    """Returns the trace of episodes, each with its root span first, and of the steps' metrics, in
    Chrome's JSON format, which https://ui.perfetto.dev and chrome://tracing open. Each row is a
    slot in which one episode after another ran; above them are the phases of each step. Only their
    lengths are recorded, so they are drawn one after the other, the last one ending when the step
    was recorded."""
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
