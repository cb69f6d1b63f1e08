"""Implements `ajet inspect audit RUN`: renders recorded calls again, counts drift, finds faults."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ajet.cli.notices import show_report
from ajet.cli.options import Overwrite, Verbose, output_file

if TYPE_CHECKING:
    from ajet.core.text.terminal import Console
    from ajet.read.reports.audit import AuditFigures

LINE_EVERY_S = 10.0


def with_lines(chunks: Iterable[AuditFigures], total: int) -> Iterator[AuditFigures]:
    """Yields the figures and now and then prints how many episodes are done: for a screen that
    cannot be redrawn."""
    next_s, num = time.monotonic() + LINE_EVERY_S, 0
    for part in chunks:
        yield part
        num += part.episodes
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + LINE_EVERY_S
            typer.echo(f"{num:,} of {total:,} episodes", err=True)


def with_bar(chunks: Iterable[AuditFigures], total: int, screen: Console) -> Iterator[AuditFigures]:
    from rich.progress import Progress

    with Progress(console=screen, transient=True) as progress:
        bar = progress.add_task("episodes", total=total)
        for part in chunks:
            yield part
            progress.advance(bar, part.episodes)


def audit(
    run: Annotated[Path, typer.Argument(help="The run folder, launcher_record/<experiment>.")],
    step: Annotated[int | None, typer.Option(min=0, help="The episodes of this step.")] = None,
    mode: Annotated[
        Literal["train", "eval", "baseline"] | None,
        typer.Option(help="Training's, validation's, or ReMax's greedy ones."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The newest N episodes.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Render every episode again, not 20,000 of a long run.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the figures as JSON here; - prints them alone.", callback=output_file
        ),
    ] = None,
    overwrite: Overwrite = False,
    verbose: Verbose = False,
) -> None:
    """Compare what the model saw with what the agent sent.

    Renders the agent's messages again. Loads the run's tokenizer but no model. Exit code 0: sound
    (drift does not count), 1: a trained token that was not sampled, a continuation that does not
    continue, or a log-probability above 0.
    """
    from ajet.core.errors import EpisodeNotFound
    from ajet.core.record.run_log import begin_screen_log
    from ajet.core.text.terminal import Console, can_redraw
    from ajet.read.episode_reader import EpisodeFilter
    from ajet.read.recorded_run import RecordedRun
    from ajet.read.reports.audit_report import MAX_RENDERED, AuditReport, audit_parts

    begin_screen_log(verbose)
    recorded = RecordedRun(run)
    recorded.require_agent("ajet inspect audit")
    which = EpisodeFilter(first_step=step, last_step=step, mode=mode)
    screen = Console(stderr=True)
    with recorded.reader() as reader:
        num = reader.count(which)
        if not num and (step, mode) != (None, None):
            raise EpisodeNotFound(f"{run}: no episode of that step or mode; see ajet view")
    chunks = audit_parts(recorded, which, limit, max_rendered=None if every else MAX_RENDERED)
    total = min(num, limit or num)
    chunks = with_bar(chunks, total, screen) if can_redraw(screen) else with_lines(chunks, total)
    report = AuditReport.from_parts(recorded, chunks)
    show_report(report, out)
    raise typer.Exit(0 if report.is_sound else 1)
