"""Audits a run in parts of a few hundred episodes, in several processes if there are many.

ids of the episodes, newest first --parts--> AuditFigures, AuditFigures, … in the same order
"""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context, parent_process
from pathlib import Path

from ajet.core.errors import RunFailed
from ajet.core.errors.codes import Code
from ajet.core.process.processor import num_processors
from ajet.core.record.run_log import begin_screen_log
from ajet.read.episode_reader import EpisodeFilter
from ajet.read.recorded_run import RecordedRun
from ajet.read.reports.audit import Audit, AuditFigures
from ajet.tool_parsers import parser_for

EPISODES_A_PART = 500
PARALLEL_FROM = 10_000
"""With fewer episodes, a process takes longer to load the tokenizer than it saves."""
MAX_PROCESSES = 8
MAX_RENDERED = 20_000
"""Of more episodes only so many, evenly spread, are rendered again, unless all are asked for."""


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
    threading.Thread(target=_end_with_command, daemon=True).start()
    begin_screen_log(verbose=False)


def _end_with_command() -> None:
    """Ends this process when the command was killed: the pool's queues would wait forever."""
    command = parent_process()
    assert command is not None
    command.join()
    os._exit(1)


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
