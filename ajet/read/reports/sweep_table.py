"""The table at the end of a sweep: the values of each run, and held-out success before and after.

lr       seed   sampled          greedy           result
1e-05    0      34.0% -> 61.5%   40.0% -> 70.5%   complete
1e-03    0      34.0% -> –       40.0% -> –       failed: …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class SweepRow:
    """A run of a sweep: its values by key, held-out success before and after by decoding, and how
    its last start ended."""

    name: str
    values: Mapping[str, str]
    run_folder: Path
    success: Mapping[str, tuple[float | None, float | None]]
    result: str


def sweep_rows(runs: Sequence[SweepRun], folders: Sequence[Path]) -> list[SweepRow]:
    rows = []
    for run, folder in zip(runs, folders, strict=True):
        file = RunFolder(folder).summary_json
        rates = RunSummary.read(file).rates if file.exists() else {}
        rows.append(SweepRow(run.name, run.values, folder, rates, _result(folder)))
    return rows


def print_sweep(console: Console, rows: Sequence[SweepRow], sweep_folder: Path) -> None:
    """Prints the table, and the command that shows all runs on one page."""
    decodings = list(dict.fromkeys(name for row in rows for name in row.success))
    table = Table(title=f"{len(rows)} runs", title_style="bold", title_justify="left")
    for key in short_keys(list(rows[0].values)).values():
        table.add_column(escape(key), overflow="fold")
    for decoding in decodings:
        table.add_column(f"held out, {decoding}".removesuffix(", "), no_wrap=True)
    table.add_column("result", overflow="fold")
    for row in rows:
        success = [_arrow(*row.success.get(decoding, (None, None))) for decoding in decodings]
        table.add_row(*map(escape, [*row.values.values(), *success, row.result]))
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
