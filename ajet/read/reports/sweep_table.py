"""The table at the end of a sweep: the values of each run, and held-out success before and after.

lr       seed   sampled          greedy           result
1e-05    0      34.0% -> 61.5%   40.0% -> 70.5%   complete
1e-03    0      34.0% -> –       40.0% -> –       failed: …
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ajet.core.config.sweep import SweepRun, short_keys
from ajet.core.record.run_folder import RunFolder, shown_path
from ajet.core.record.summary import RunSummary
from ajet.core.run.attempt_record import read_attempts
from ajet.core.text.terminal import Console
from ajet.read.reports.summary_table import program

NOT_MEASURED = "–"


def print_sweep(
    console: Console, runs: Sequence[SweepRun], folders: Sequence[Path], sweep_folder: Path
) -> None:
    """Prints the table, and the command that shows all runs on one page."""
    summaries = [_summary(folder) for folder in folders]
    decodings = list(dict.fromkeys(name for found in summaries if found for name in found.rates))
    table = Table(title=f"{len(runs)} runs", title_style="bold", title_justify="left")
    for key in short_keys(list(runs[0].values)).values():
        table.add_column(escape(key), overflow="fold")
    for decoding in decodings:
        table.add_column(f"held out, {decoding}".removesuffix(", "), no_wrap=True)
    table.add_column("result", overflow="fold")
    for run, folder, summary in zip(runs, folders, summaries, strict=True):
        rates = summary.rates if summary else {}
        success = [_arrow(*rates.get(decoding, (None, None))) for decoding in decodings]
        table.add_row(*map(escape, [*run.values.values(), *success, _result(folder)]))
    console.print(table)
    console.print(Text("all runs on one page", style="dim"))
    command = f"  {program('ajet')} view {shown_path(sweep_folder)}"
    console.print(Text(command, style="cyan"), soft_wrap=True)  # one line, for copying


def _arrow(before: float | None, after: float | None) -> str:
    return " -> ".join(NOT_MEASURED if rate is None else f"{rate:.1%}" for rate in (before, after))


def _result(folder: Path) -> str:
    attempts = read_attempts(RunFolder(folder))
    if not attempts:
        return "not begun"
    last = attempts[-1]
    if last.end is None:
        return "no end recorded"
    return f"{last.end}: {last.reason}" if last.reason else last.end


def _summary(folder: Path) -> RunSummary | None:
    file = RunFolder(folder).summary_json
    return RunSummary.read(file) if file.exists() else None
