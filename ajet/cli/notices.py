"""A command's screen: its log, notices of settings without effect, findings, and its report."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from ajet.cli.json_document import answer, current_document
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.text.redaction import redact

if TYPE_CHECKING:
    from ajet.read.reports.report import Report

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One line about the config, with advice if something is wrong. An error has a code."""

    level: Level
    text: str
    code: Code | None = None

    def __str__(self) -> str:
        return f"{self.level}: {self.text}{f' [{self.code}]' if self.code else ''}"


def errors_of(findings: Iterable[Finding]) -> list[ConfigError]:
    """Returns an error for each finding that is one."""
    return [
        ConfigError(finding.text, code=finding.code)
        for finding in findings
        if finding.level == "error"
    ]


def stop_at_errors(findings: Iterable[Finding]) -> None:
    """Raises ConfigError for the first finding that is an error."""
    for error in errors_of(findings):
        raise error


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
