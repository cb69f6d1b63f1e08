"""A command's screen: its log, a line for each setting that has no effect, and its report."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ajet.cli.json_document import answer, current_document
from ajet.core.text.redaction import redact

if TYPE_CHECKING:
    from ajet.read.reports.report import Report


def begin_command(verbose: bool) -> None:
    """Prepares this process for a command that runs episodes."""
    from ajet.core.process.descriptors import raise_descriptor_limit
    from ajet.core.record.run_log import begin_screen_log

    begin_screen_log(verbose)
    raise_descriptor_limit()


def show_notices(notices: Iterable[str], *, err: bool = True) -> None:
    """Prints to stderr by default, so that stdout has only the command's result."""
    document = current_document()
    for notice in notices:
        if document is not None:
            document.notices.append(notice)
        typer.echo(redact(f"notice: {notice}"), err=err)


def show_report(report: "Report", out: Path | None, *, soft_wrap: bool = False) -> None:
    """Shows the report, and writes it to the JSON file `out`; ``-`` prints only its JSON."""
    from ajet.core.text.terminal import Console

    answer(**report.as_plain())
    if out == Path("-"):
        typer.echo(report.as_json(), nl=False)
        return
    Console().print(report.shown(), soft_wrap=soft_wrap)
    if out is not None:
        typer.echo(f"written: {' and '.join(map(str, report.write(out)))}")
