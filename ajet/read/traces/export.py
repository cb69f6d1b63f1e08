"""Sends the episodes of a run folder, as spans, to a receiver, also while the run is still going.

    export = TraceExport(Path("launcher_record/math_demo"))
    export.send(export.target("otlp", "http://localhost:4318"))      # everything recorded so far
    export.follow(target, is_over)                                   # and what is recorded later
    export.write_chrome_trace(Path("step3.json"), step=3)

`follow` keeps each receiver's position in ``logs/traces.json`` and resumes there after a restart.
What it sent just before it was killed may be sent twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
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
from ajet.read.traces.perfetto import chrome_trace
from ajet.read.traces.spans import RunFacts, Span, episode_spans

POLL_S = 1.0
EPISODES_AT_ONCE = 50


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
        Returns the number of episodes. A receiver that fails is tried again."""
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
