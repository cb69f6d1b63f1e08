"""The table at the end of a run: its result, and commands that show more of it."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ajet.core.record.evaluation import wilson
from ajet.core.record.run_folder import RunFolder, shown_path
from ajet.core.record.summary import RunSummary
from ajet.core.run.attempt_record import read_attempts
from ajet.core.text.terminal import Console
from ajet.read.stages_summary import StageResult

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
    if not _has_risen(summary):
        why = f"{program('ajet')} why {shown_path(folder)}"
        console.print(Text("what holds the reward back", style="dim"))
        console.print(Text(f"  {why}", style="cyan"), soft_wrap=True)
    for title, command in follow_up_commands(folder, conf if has_tasks else None, overrides):
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


def print_stages(console: Console, stages: Sequence[StageResult], folder: Path) -> None:
    table = Table(title="Stages", title_style="bold", title_justify="left")
    for title in ("stage", "kind", "steps", "time", "held out before", "after"):
        table.add_column(title, no_wrap=True)
    for stage in stages:
        summary = stage.summary
        entropies = summary.extra.get("cross_entropy", {})
        moments = ("before", "after")
        values = [_rate_of_stage(summary, moment) for moment in moments]
        if entropies:
            values = [f"{entropies[m]:.4f} nats" if m in entropies else "–" for m in moments]
        numbers = [f"{summary.steps:,}", _duration(summary.wall_seconds), *values]
        table.add_row(*map(escape, [stage.name, stage.kind, *numbers]))
    console.print(table)
    console.print(Text(f"in numbers: {shown_path(folder)}/summary.json", style="dim"))
    for stage in stages:
        console.print(Text(f"  {program('ajet')} view {shown_path(stage.folder)}", style="cyan"))


def _rate_of_stage(summary: RunSummary, moment: Literal["before", "after"]) -> str:
    place = ("before", "after").index(moment)
    rates = {name: ends[place] for name, ends in summary.rates.items()}
    measured = [f"{name} {rate:.1%}".strip() for name, rate in rates.items() if rate is not None]
    return ", ".join(measured) or "–"


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
