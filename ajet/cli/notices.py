"""Begins and ends a command on the screen: its log, a line for each setting that has no effect, and
its report.

Not covered: warnings of the run itself (screen_log.py).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import typer

from ajet.core.redaction import redact

if TYPE_CHECKING:
    from rich.console import RenderableType


class Report(Protocol):
    """Gives what a command has found: for the screen, as JSON, and as files."""

    def shown(self) -> "RenderableType": ...
    def as_json(self) -> str: ...
    def write(self, file: Path) -> tuple[Path, ...]: ...


def begin_command(verbose: bool) -> None:
    """Sets up what every command that runs episodes needs of this process."""
    from ajet.core.descriptors import raise_descriptor_limit
    from ajet.core.record.screen_log import begin_screen_log

    begin_screen_log(verbose)
    raise_descriptor_limit()


def show_notices(notices: Iterable[str], *, err: bool = True) -> None:
    """Prints to stderr, so that stdout holds only the command's result."""
    for notice in notices:
        typer.echo(redact(f"notice: {notice}"), err=err)


def show_report(report: Report, out: Path | None, *, soft_wrap: bool = False) -> None:
    """Shows the report, and writes it into the JSON file `out` if that is given; ``-`` prints its
    JSON alone."""
    from ajet.core.terminal import Console

    if out == Path("-"):
        typer.echo(report.as_json(), nl=False)
        return
    Console().print(report.shown(), soft_wrap=soft_wrap)
    if out is not None:
        typer.echo(f"written: {' and '.join(map(str, report.write(out)))}")
