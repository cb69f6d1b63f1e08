"""The tables at the end of a run, of its stages and of a sweep, with commands that show more; and
the summary.json of a run with stages.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ajet.core.config.sweep import SweepRun, short_keys
from ajet.core.record.atomic_file import write_text_atomically
from ajet.core.record.evaluation import wilson
from ajet.core.record.run_folder import RunFolder, shown_path
from ajet.core.record.summary import RunSummary
from ajet.core.run.attempt_record import read_attempts
from ajet.core.text.terminal import Console

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig

NOT_MEASURED = "–"
STAGE_FIGURES = (
    "steps",
    "episodes",
    "wall_seconds",
    "success_before",
    "success_after",
    "success_by_decoding",
    "num_held_out",
    "cross_entropy",
)
"""Keys that are copied from the summary of a stage."""
Command = tuple[str, str]
"""A description and the shell command itself."""


def print_summary(
    console: Console,
    summary: RunSummary,
    folder: Path,
    conf: Path | None = None,
    overrides: Sequence[str] = (),
) -> None:
    """Prints the table, followed by commands to copy, one line each. `conf` and `overrides` are
    those that the run was started with, without secrets."""
    console.print(summary_table(summary, folder), Text())
    for line in warning_lines(summary):
        console.print(Text(line, style="yellow"), soft_wrap=True)
    has_tasks = not summary.extra.get("cross_entropy") and _has_held_out(summary)
    commands = follow_up_commands(folder, conf if has_tasks else None, overrides)
    if not _has_risen(summary):
        why = f"{program('ajet')} why {shown_path(folder)}"
        commands.insert(0, ("what holds the reward back", why))
    for title, command in commands:
        console.print(Text(title, style="dim"))
        console.print(Text(f"  {command}", style="cyan"), soft_wrap=True)  # one line, for copying


def summary_table(summary: RunSummary, folder: Path) -> Table:
    """Returns a table of held-out success with 95 % intervals, cost, and the run folder."""
    table = Table(title="Result", title_style="bold", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    num, available = summary.num_held_out, summary.num_held_out_available
    name = f"success on {num} {f'of {available:,} ' if available > num else ''}held-out tasks"
    if entropies := summary.extra.get("cross_entropy"):
        for moment, nats in entropies.items():
            row = f"cross-entropy of {num} held-out rows, {moment}"
            table.add_row(row, f"[bold]{nats:.4f}[/]  [dim]nats a token[/]")
    elif not _has_held_out(summary):
        table.add_row("success on held-out tasks", "not measured: the task reader has none")
    else:
        for decoding, ends in summary.rates.items():
            for moment, rate in zip(("before", "after"), ends, strict=True):
                row = ", ".join(filter(None, [name, decoding, moment]))
                table.add_row(row, _success(rate, num))
    table.add_section()
    table.add_row("steps / episodes", f"{summary.steps:,} / {summary.episodes:,}")
    table.add_row("time", _duration(summary.wall_seconds))
    table.add_row("peak memory", f"{summary.peak_rss_bytes / 1e9:.2f} GB")
    if signal := _signal(summary.signal):
        table.add_row("groups with signal", signal)
    for name, text in timeline_rows(summary.timelines):
        table.add_row(name, text)
    attempts = read_attempts(RunFolder(folder))
    if len(attempts) > 1:
        lines = "\n".join(attempt.describe() for attempt in attempts)
        table.add_row("attempts", Text(lines, overflow="fold"))
    table.add_row("run folder", Text(shown_path(folder), overflow="fold"))
    return table


@dataclass(frozen=True, slots=True)
class StageResult:
    """Holds a finished stage: its name, its kind, its run folder and its summary."""

    name: str
    kind: str
    folder: Path
    summary: RunSummary

    @classmethod
    def read(cls, config: AjetConfig) -> Self:
        """Reads the result of a stage from its run folder."""
        assert config.stage is not None
        summary = RunSummary.read(RunFolder(config.run_folder).summary_json)
        return cls(config.stage, config.ajet.kind, config.run_folder, summary)

    def as_json(self) -> dict[str, Any]:
        """Returns its entry in the summary of the stages."""
        content = self.summary.as_json()
        figures = {name: content[name] for name in STAGE_FIGURES if name in content}
        return {"name": self.name, "kind": self.kind, "folder": self.folder.name, **figures}


def write_stages(folder: Path, results: Sequence[StageResult]) -> None:
    """Writes the `summary.json` of the folder that holds the stages, completely or not at all:

    {"stages": [{"name": "imitate", "kind": "supervised", "folder": "imitate", "steps": 40, …}, …]}
    """
    content = {"stages": [result.as_json() for result in results]}
    write_text_atomically(folder / "summary.json", json.dumps(content, indent=2) + "\n")


def print_stages(console: Console, stages: Sequence[StageResult], folder: Path) -> None:
    table = Table(title="Stages", title_style="bold", title_justify="left")
    for title in ("stage", "kind", "steps", "time", "held out before", "after"):
        table.add_column(title, no_wrap=True)
    for stage in stages:
        summary = stage.summary
        entropies = summary.extra.get("cross_entropy", {})
        values = []
        for place, moment in enumerate(("before", "after")):
            measured = [
                f"{decoding} {rate:.1%}".strip()
                for decoding, rates in summary.rates.items()
                if (rate := rates[place]) is not None
            ]
            if entropies:
                measured = [f"{entropies[moment]:.4f} nats"] if moment in entropies else []
            values.append(", ".join(measured) or NOT_MEASURED)
        numbers = [f"{summary.steps:,}", _duration(summary.wall_seconds), *values]
        table.add_row(*map(escape, [stage.name, stage.kind, *numbers]))
    console.print(table)
    console.print(Text(f"in numbers: {shown_path(folder)}/summary.json", style="dim"))
    for stage in stages:
        console.print(Text(f"  {program('ajet')} view {shown_path(stage.folder)}", style="cyan"))


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
        success = []
        for decoding in decodings:
            ends = row.success.get(decoding, (None, None))
            success.append(
                " -> ".join(NOT_MEASURED if rate is None else f"{rate:.1%}" for rate in ends)
            )
        table.add_row(*map(escape, [*row.values.values(), *success, row.result]))
    console.print(table)
    console.print(Text("all runs on one page", style="dim"))
    command = f"  {program('ajet')} view {shown_path(sweep_folder)}"
    console.print(Text(command, style="cyan"), soft_wrap=True)  # one line, for copying


def _result(folder: Path) -> str:
    attempts = read_attempts(RunFolder(folder))
    if not attempts:
        return "not begun"
    last = attempts[-1]
    if last.end is None:
        return "no end recorded"
    return f"{last.end}: {last.reason}" if last.reason else last.end


def warning_lines(summary: RunSummary) -> list[str]:
    """Returns the run's warnings, one line each, and why steps had nothing to learn from."""
    lines = [f"warning (step {warning['step']}): {warning['text']}" for warning in summary.warnings]
    signal = summary.signal
    if not signal.get("steps_without"):
        return lines
    which = f"{signal['steps_without']} of {signal['steps']} steps"
    if signal["steps_without"] == signal["steps"]:
        which = f"nothing was learnt: none of the {signal['steps']} steps"
        return [*lines, f"{which} had a group with signal; the last: {signal['last_reason']}"]
    return [*lines, f"{which} had no group with signal; the last: {signal['last_reason']}"]


def _signal(signal: Mapping[str, Any]) -> str | None:
    """Returns the share of groups with signal as text, or None before the first step."""
    if not signal.get("groups"):
        return None
    share = signal["groups_with"] / signal["groups"]
    text = f"{share:.0%} of {signal['groups']:,}"
    none = signal["steps_without"]
    return f"{text}  [bold red]{none:,} of {signal['steps']:,} steps had none[/]" if none else text


def timeline_rows(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields rows about timelines, the share of sampled tokens that were trained, and drift."""
    if not report.get("calls"):
        return
    ratio = f"{report['token_ratio']:.1f}x"
    saved = (
        "" if ratio == "1.0x" else f"  [dim]a row for each call would have {ratio} the tokens[/]"
    )
    yield "trained calls / timelines", f"{report['calls']:,} / {report['timelines']:,}{saved}"
    tokens = report["tokens"]
    share = tokens["trained"] / tokens["sampled"]
    untrained = _listed(
        {f"not: {reason}": num for reason, num in tokens["not_trained"].items()}, ", "
    )
    idle = tokens.get("trained_without_advantage", 0) / max(tokens["trained"], 1)
    none = f", {idle:.0%} of them with advantage 0" if idle else ""
    yield "sampled tokens trained", f"{share:.1%} of {tokens['sampled']:,}{none}{untrained}"
    if report["splits"] and report["timelines"] < report["calls"]:  # there was something to merge
        yield "timelines broke off", _listed(report["splits"], "\n").strip()
    if report["malformed"]:
        yield "malformed replies", _listed(report["malformed"], ", ").strip()
    if drift := _drift(report["drift"]):
        yield "drift", drift


def _listed(counts: Mapping[str, int], separator: str) -> str:
    """Returns the counts as grey text, the most frequent first."""
    most = sorted(counts.items(), key=lambda item: -item[1])
    listed = separator.join(f"{num:,} {name}" for name, num in most)
    return f"  [dim]{escape(listed)}[/]" if listed else ""


def _drift(drift: Mapping[str, float]) -> str | None:
    """Returns the drift of the checked calls as text, or None if none was checked."""
    if not drift["checked"]:
        return None
    text = f"{drift['rate']:.1%} of {drift['checked']:,.0f} calls checked"
    if drift["rate"]:
        text += (
            f"  [dim]encoded again: other ids, first at {drift['first_position_min']:.0f}, "
            f"median {drift['first_position_median']:.0f}; trained as sampled[/]"
        )
    return text


def follow_up_commands(folder: Path, conf: Path | None, overrides: Sequence[str]) -> list[Command]:
    """Returns the commands for the page of episodes, for the curves if TensorBoard has them, and
    for evaluating the newest checkpoint."""
    run_path = shown_path(folder)
    commands = [("every episode, token by token", f"{program('ajet')} view {run_path}")]
    if any(RunFolder(folder).tensorboard.glob("*")):
        curves = f"{program('tensorboard')} --logdir {run_path}/tensorboard"
        commands.append(("the curves", curves))
    if conf is not None:
        options = ["--conf", shown_path(conf), "--checkpoint", run_path]
        line = shlex.join([program("ajet"), "eval", *options, *overrides])
        commands.append(("its model on the held-out tasks", line))
    return commands


def program(name: str) -> str:
    """Returns the program's name, or its path if the environment is not activated."""
    neighbour = Path(sys.executable).parent / name
    return shown_path(neighbour) if shutil.which(name) is None and neighbour.exists() else name


def _has_held_out(summary: RunSummary) -> bool:
    return bool(summary.num_held_out or summary.num_held_out_available)


def _has_risen(summary: RunSummary) -> bool:
    """Tells whether held-out success rose, in either decoding; also of a run on given replies,
    which has no reward."""
    if "cross_entropy" in summary.extra:
        return True
    return any(
        after is not None and after > (before or 0.0) for before, after in summary.rates.values()
    )


def _success(rate: float | None, num_tasks: int) -> str:
    if rate is None:
        return "not evaluated"
    if not num_tasks:
        return f"{rate:.1%}"
    estimate = wilson(round(rate * num_tasks), num_tasks)
    return f"[bold]{rate:.1%}[/]  [dim]95 % interval {estimate.low:.1%} to {estimate.high:.1%}[/]"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
