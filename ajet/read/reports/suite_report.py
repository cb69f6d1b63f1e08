"""The report of `ajet eval --suite`: several benchmarks in one table, and two models compared, task
by task, over those that both played.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ajet.core.record.atomic_file import is_special_file, write_output
from ajet.core.record.evaluation import IntervalEstimate, paired_difference
from ajet.read.reports.evaluation_report import EvaluationReport
from ajet.read.reports.report import Report


@dataclass(frozen=True)
class SuiteResult:
    """One benchmark's figures. `about` describes the suite in the output: its data, and how the
    model is prompted. `other_wins` are the successes of the other model, by task."""

    name: str
    about: dict[str, str]
    report: EvaluationReport
    other_wins: Mapping[str, Sequence[bool]] | None = None

    @property
    def compared(self) -> list[str]:
        """Returns the tasks that both models played."""
        return [task for task in self.report.tasks if task in (self.other_wins or {})]

    @property
    def difference(self) -> IntervalEstimate | None:
        """Returns this model's success minus the other's; None without common tasks."""
        return paired_difference(self.report.wins, self.other_wins or {}) if self.compared else None

    @property
    def success_of_other(self) -> float | None:
        shares = [fmean((self.other_wins or {})[task]) for task in self.compared]
        return fmean(shares) if shares else None


@dataclass(frozen=True)
class SuiteReport(Report):
    """The benchmarks of one model, in the order of the command line."""

    results: Sequence[SuiteResult]
    other_subject: str | None = None

    @property
    def subject(self) -> str:
        return self.results[0].report.subject

    @staticmethod
    def files(file: Path) -> tuple[Path, ...]:
        """Returns the paths of the JSON file and the Markdown table, whichever of them `file`
        names; a device gets the JSON alone."""
        if is_special_file(file):
            return (file,)
        table = file.with_suffix(".md")
        return (file.with_suffix(".json") if file == table else file, table)

    def write(self, file: Path) -> tuple[Path, ...]:
        files = self.files(file)
        for path, content in zip(files, (self.as_json(), self.as_markdown()), strict=False):
            write_output(path, content)
        return files

    def as_plain(self) -> dict[str, Any]:
        suites = [_plain(result) for result in self.results]
        return {"subject": self.subject, "against": self.other_subject, "suites": suites}

    def as_markdown(self) -> str:
        rows = [self._header, ["---"] * len(self._header), *map(self._row, self.results)]
        lines = [f"| {' | '.join(row)} |" for row in rows]
        title = f"{self.subject}, compared with {self.other_subject}"
        heading = title if self.other_subject else self.subject
        notes = [
            f"- {result.name} ({result.about['data']}): {_how(result)}" for result in self.results
        ]
        return "\n".join([heading, "", *lines, "", *notes, ""])

    def shown(self) -> RenderableType:
        table = Table()
        for number, name in enumerate(self._header):
            table.add_column(name, justify="left" if number in (0, 1) else "right")
        for result in self.results:
            table.add_row(*self._row(result))
        lines = [Text(self.subject, style="bold"), table]
        if self.other_subject is not None:
            lines.insert(1, Text(f"compared with {self.other_subject}"))
        return Lines(*lines, *(Text(f"{result.name}: {_how(result)}") for result in self.results))

    @property
    def _header(self) -> list[str]:
        columns = ["suite", "tasks x episodes", "success", "95 % interval", "not ok"]
        compared = ["other", "difference", "95 % interval"]
        return [*columns, *compared] if self.other_subject is not None else columns

    def _row(self, result: SuiteResult) -> list[str]:
        figures = result.report.figures
        ended = [(name, num) for name, num in figures.statuses.items() if name != "ok"]
        cells = [
            result.name,
            f"{figures.num_tasks} x {figures.num_repeat}",
            f"{figures.success.value:.3f}",
            f"{figures.success.low:.3f} to {figures.success.high:.3f}",
            ", ".join(f"{num} {name}" for name, num in ended) or "0",
        ]
        if self.other_subject is None:
            return cells
        difference = result.difference
        if difference is None:
            return [*cells, "no task in common", "", ""]
        # The other's success is only known on the common tasks.
        same = f" on {len(result.compared)}" if len(result.compared) < figures.num_tasks else ""
        return [
            *cells,
            f"{result.success_of_other:.3f}{same}",
            f"{difference.value:+.3f}",
            f"{difference.low:+.3f} to {difference.high:+.3f}",
        ]


def _how(result: SuiteResult) -> str:
    temperature = result.report.sampling.temperature
    sampled = "greedy" if temperature == 0 else f"temperature {temperature:g}"
    tools = result.report.first_prompt.get("tools")
    form = " (here: tools)" if tools else ""
    return f"{result.about['prompting']}{form}; {sampled}"


def _plain(result: SuiteResult) -> dict[str, Any]:
    difference = result.difference
    compared: dict[str, Any] = {}
    if difference is not None:
        compared = {
            "success_of_other": result.success_of_other,
            "difference": asdict(difference),
            "num_compared": len(result.compared),
        }
    return {
        "name": result.name,
        **result.about,
        **result.report.as_plain(),
        **compared,
        "first_prompt": result.report.first_prompt,
    }
