"""Sends the episodes of a run folder, as spans, to a receiver; also while the run writes them.

    export = TraceExport(Path("launcher_record/math_demo"))
    export.send(export.target("otlp", "http://localhost:4318"))      # all that it holds
    export.follow(target, is_over)                                   # and what comes
    export.write_chrome_trace(Path("step3.json"), step=3)

A follower keeps in ``logs/traces.json`` how far each receiver is, so that one that is started again
goes on there. What it sent just before it was killed may be sent twice.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from loguru import logger

from ajet.core.error_codes import Code
from ajet.core.errors import CheckpointError, DataError, TraceError
from ajet.core.record.atomic_file import write_output, write_text_atomically, writing
from ajet.core.record.episode_reader import EpisodeReader, EpisodeRecord, EpisodeRow
from ajet.core.record.recorded_run import RecordedRun
from ajet.core.record.run_checks import metrics_rows
from ajet.traces.mlflow_store import MlflowTarget
from ajet.traces.otlp import OtlpTarget
from ajet.traces.perfetto import chrome_trace
from ajet.traces.spans import RunFacts, Span, episode_spans

POLL_S = 1.0
EPISODES_AT_ONCE = 50


class TraceTarget(Protocol):
    """Receives spans. `send` raises `TraceError` where they are not taken."""

    @property
    def name(self) -> str: ...
    def send(self, spans: list[Span]) -> None: ...
    def close(self) -> None: ...


class TraceExport:
    """Reads the episodes of one run folder and sends their spans."""

    def __init__(self, path: Path) -> None:
        self._run = RecordedRun(path)
        self._folder = self._run.folder
        config = self._run.config
        self._project = config.ajet.project_name
        model = Path(str(config.ajet.model.path)).name
        self._facts = RunFacts(self._folder.run_id(), config.experiment_name, model)
        self._progress = self._folder.logs / "traces.json"

    def target(self, kind: str, address: str | None) -> TraceTarget:
        """Returns the receiver of this kind, `otlp` or `mlflow`; None is its usual address."""
        if kind == "otlp":
            return OtlpTarget(self._facts, address)
        return MlflowTarget(self._folder, self._project, address)

    def send(
        self, target: TraceTarget, *, step: int | None = None, episodes: Iterable[str] = ()
    ) -> int:
        """Sends the chosen episodes (none named: all, or all of a step). Returns their number."""
        number = 0
        with self._run.reader() as reader:
            for records in _in_batches(self._chosen(reader, step, list(episodes))):
                self._send(target, records)
                number += len(records)
        return number

    def follow(self, target: TraceTarget, is_over: threading.Event) -> int:
        """Sends what is recorded and was not sent yet, until the event is set and nothing is left.
        Returns the number of episodes. A receiver that does not take them is tried again."""
        number = 0
        with self._run.reader() as reader:
            # A run that is resumed has cut off the last steps, and writes them again.
            last_id = min(self._progress_of_all().get(target.name, 0), reader.last_id())
            self._keep(target.name, last_id)
            while True:
                ends_after_this = is_over.is_set()
                while rows := reader.newer_than(last_id, EPISODES_AT_ONCE):
                    records = _complete(reader, rows)
                    try:
                        self._send(target, records)
                    except TraceError as error:
                        if ends_after_this:
                            raise
                        logger.warning(f"{error}; it is tried again")
                        break
                    last_id, number = rows[-1].id, number + len(records)
                    self._keep(target.name, last_id)
                if ends_after_this:
                    return number
                is_over.wait(POLL_S)

    def write_chrome_trace(
        self, file: Path, *, step: int | None = None, episodes: Iterable[str] = ()
    ) -> int:
        """Writes the chosen episodes for Perfetto. Returns their number."""
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
            raise DataError(
                f"--step {step}: {self._folder.path} has no episode of this step; see ajet view",
                code=Code.EPISODE_NOT_FOUND,
            )

    def _send(self, target: TraceTarget, records: Iterable[EpisodeRecord]) -> None:
        target.send([span for spans in self._spans(records) for span in spans])

    def _spans(self, records: Iterable[EpisodeRecord]) -> list[list[Span]]:
        return [episode_spans(each, self._facts, self._ended_by(each)) for each in records]

    def _ended_by(self, record: EpisodeRecord) -> float:
        """Returns when an episode had ended that does not say when it began."""
        if record.began_unix_s is not None:
            return record.began_unix_s
        written_s = self._folder.episodes_db.stat().st_mtime
        return self._recorded_at.get(record.row.step, written_s)

    @cached_property
    def _recorded_at(self) -> dict[int, float]:
        """Returns when each step was recorded."""
        rows = metrics_rows(self._folder.metrics_jsonl)
        return {step: row["time"] for step, row in rows if "time" in row}

    def _keep(self, name: str, last_id: int) -> None:
        content = {**self._progress_of_all(), name: last_id}
        with writing(self._progress):
            write_text_atomically(self._progress, json.dumps(content))

    def _progress_of_all(self) -> dict[str, int]:
        """Returns the id of the last row that each receiver has."""
        try:
            content: Any = json.loads(self._progress.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise CheckpointError(
                f"{self._progress} is damaged: {error}; remove it, and all episodes are sent again",
                code=Code.RECORD_UNREADABLE,
            ) from error
        return content


def _complete(reader: EpisodeReader, rows: list[EpisodeRow]) -> list[EpisodeRecord]:
    """Returns the episodes of the rows; a run that is resumed may have cut some off meanwhile."""
    found: list[EpisodeRecord] = []
    for row in rows:
        try:
            found.append(reader.episode(row.episode_id))
        except DataError:
            continue
    return found


def _in_batches(records: Iterator[EpisodeRecord]) -> Iterator[list[EpisodeRecord]]:
    batch: list[EpisodeRecord] = []
    for record in records:
        batch.append(record)
        if len(batch) == EPISODES_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch
