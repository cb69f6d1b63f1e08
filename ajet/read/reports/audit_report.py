"""The figures of an audit, in parts of a few hundred episodes and in several processes if there are
many; and the report of `ajet inspect audit`, as a table and as JSON.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from multiprocessing import get_context, parent_process
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ajet.core.errors import RunFailed
from ajet.core.errors.codes import Code
from ajet.core.process.processor import num_processors
from ajet.core.record.run_log import begin_screen_log
from ajet.read.episode_reader import EpisodeFilter
from ajet.read.recorded_run import RecordedRun
from ajet.read.reports.audit import Audit, AuditFigures
from ajet.read.reports.report import Report
from ajet.tool_parsers import parser_for

EPISODES_A_PART = 500
PARALLEL_FROM = 10_000
"""With fewer episodes, a process takes longer to load the tokenizer than it saves."""
MAX_PROCESSES = 8
MAX_RENDERED = 20_000
"""Of more episodes only so many, evenly spread, are rendered again, unless all are asked for."""
SHOWN = 10
Row = tuple[str, int | str, str]


@dataclass(frozen=True, slots=True)
class Part:
    """Some of a run's episodes: the newest `size` ones below `after` that pass the filter. Every
    `render_every`-th is rendered again."""

    run: Path
    which: EpisodeFilter
    after: int
    size: int
    render_every: int


def audit_parts(
    run: RecordedRun,
    which: EpisodeFilter,
    limit: int | None = None,
    *,
    max_rendered: int | None = None,
    num_processes: int | None = None,
    part_size: int = EPISODES_A_PART,
) -> Iterator[AuditFigures]:
    """Yields the figures of the newest `limit` episodes part by part, the newest part first. About
    `max_rendered` of them (all without it) are rendered again. The sum of the figures does not
    depend on the number of processes, by default the number of processors."""
    with run.reader() as reader:
        ids = reader.ids(which, limit)
    every = 1 if max_rendered is None else max(1, math.ceil(len(ids) / max_rendered))
    pieces = [
        Part(run.folder.path, which, ids[at] + 1, len(ids[at : at + part_size]), every)
        for at in range(0, len(ids), part_size)
    ]
    if num_processes is None:
        is_long = len(ids) >= PARALLEL_FROM
        num_processes = min(MAX_PROCESSES, num_processors()) if is_long else 1
    if num_processes == 1:
        yield from map(_audited, pieces)
        return
    # Spawned instead of forked: threads of the tokenizer may run in this process.
    pool = ProcessPoolExecutor(num_processes, get_context("spawn"), initializer=_begin_process)
    try:
        yield from pool.map(_audited, pieces)
    except BrokenProcessPool as error:
        raise RunFailed(
            f"{run.folder.path}: a process of the audit was killed, perhaps for memory; audit a "
            "part with --step, --mode or --limit",
            code=Code.PROCESS_LOST,
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_process() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends its processes itself
    command = parent_process()
    assert command is not None

    def end_with_command() -> None:  # if it is killed, the pool's queues would wait forever
        command.join()
        os._exit(1)

    threading.Thread(target=end_with_command, daemon=True).start()
    begin_screen_log(verbose=False)


def _audited(part: Part) -> AuditFigures:
    run, audit = _opened(part.run, part.render_every)
    audit.figures = AuditFigures()
    with run.reader() as reader:
        audit.add_all(reader.walk(part.which, part.size, part.after))
    return audit.figures


@lru_cache(maxsize=1)
def _opened(path: Path, render_every: int) -> tuple[RecordedRun, Audit]:
    """Returns the run and its audit, which keeps rendered pieces from part to part."""
    run = RecordedRun(path)
    parser = parser_for(run.template, run.config.ajet.rollout.tool_parser)
    return run, Audit(run.template, parser, render_every=render_every)


@dataclass(frozen=True)
class AuditReport(Report):
    """The figures of one run. `template` is the fingerprint of the chat template's text."""

    run: str
    model: str
    template: str
    figures: AuditFigures

    @classmethod
    def from_parts(cls, run: RecordedRun, figures_of_parts: Iterable[AuditFigures]) -> AuditReport:
        figures = AuditFigures()
        for part in figures_of_parts:
            figures.add(part)
        fingerprint = sha256(run.template.text.encode()).hexdigest()[:12]
        model = str(run.config.ajet.model.path)
        return cls(str(run.folder.path), model, fingerprint, figures)

    @property
    def is_sound(self) -> bool:
        return not self.figures.num_faults

    def as_plain(self) -> dict[str, Any]:
        figures = dict(vars(self.figures))
        positions = figures.pop("drift_at")
        return {
            "run": self.run,
            "model": self.model,
            "template": self.template,
            "sound": self.is_sound,
            **figures,
            "drift_rate": _share(len(positions), self.figures.rendered),
            "drift_first_position_min": min(positions, default=None),
            "drift_first_position_median": median(positions) if positions else None,
        }

    def shown(self) -> RenderableType:
        table = Table()
        table.add_column()
        table.add_column("number", justify="right")
        table.add_column("of which")
        for section in (self._calls(), self._renders(), self._tokens()):
            for name, number, detail in section:
                table.add_row(name, f"{number:,}" if isinstance(number, int) else number, detail)
            table.add_section()
        title = Text(f"{self.model}, template {self.template}: {self.run}", style="bold")
        num = self.figures.num_faults
        if not num:
            return Lines(title, table, Text("sound: no faults", style="bold green"))
        faults = [Text(fault, style="red") for fault in self.figures.faults[:SHOWN]]
        more = f", {SHOWN} of them above" if num > SHOWN else ""
        verdict = Text(f"not sound: {num} fault{'s' * (num > 1)}{more}", style="bold red")
        return Lines(title, table, *faults, verdict)

    def _calls(self) -> Iterator[Row]:
        figures = self.figures
        yield "episodes", figures.episodes, ""
        share = _percent(figures.continued, figures.calls)
        yield "calls", figures.calls, f"{figures.continued:,} continued" + (share and f" ({share})")
        if figures.calls_without_ids:
            yield "  of a chat endpoint", figures.calls_without_ids, "it shows no ids"
        if figures.calls_with_ids_alone:
            yield "  with ids alone", figures.calls_with_ids_alone, "there is nothing to render"
        yield "branches", figures.branches.total(), ""
        for reason, number in figures.branches.most_common():
            yield "", number, reason
        if figures.timelines:
            yield "timelines trained", figures.timelines, ""

    def _renders(self) -> Iterator[Row]:
        figures = self.figures
        num_drifted = figures.drift.total()
        some = figures.episodes_rendered < figures.episodes
        of = f"of {figures.episodes_rendered:,} episodes; --all renders every one" if some else ""
        yield "rendered afresh", figures.rendered, of
        yield "  the same ids", figures.same, _percent(figures.same, figures.rendered)
        yield "  drift", num_drifted, _percent(num_drifted, figures.rendered)
        for cause, number in figures.drift.most_common():
            yield "", number, cause
        if figures.drift_at:
            at = figures.drift_at
            yield "  first position", f"{min(at):,}", f"the least; median {median(at):,g}"
        for reason, number in figures.not_rendered.most_common():
            yield "  cannot be rendered", number, reason
        num = figures.replies_read_otherwise
        yield "replies parsed differently", num, f"of {figures.replies:,}, by today's parser"

    def _tokens(self) -> Iterator[Row]:
        figures = self.figures
        yield "sampled, trainable", figures.sampled.total(), _by_status(figures.sampled)
        yield "trained", figures.trained.total(), _by_status(figures.trained)
        for reason, number in figures.untrained.most_common():
            yield "  not trained", number, reason


def _share(number: int, of: int) -> float | None:
    return number / of if of else None


def _percent(number: int, of: int) -> str:
    share = _share(number, of)
    return "" if share is None else f"{share:.1%}"


def _by_status(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {status}" for status, number in counts.items() if number)
