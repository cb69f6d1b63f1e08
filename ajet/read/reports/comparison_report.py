"""The report of `ajet eval --compare A B`: two models on the same tasks. The terminal shows some of
the tasks that rose and fell; Markdown and HTML (comparison_html.py) have more, with both models'
answers; JSON has all figures and names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ajet.core.errors import ConfigError, DataError
from ajet.core.errors.codes import Code
from ajet.core.record.atomic_file import is_special_file, write_output
from ajet.read.comparison import Comparison, Pair, PlayedTask, Tasks, compare
from ajet.read.reports.evaluation_report import EvaluationReport
from ajet.read.reports.report import Report

SHOWN, WRITTEN, MAX_LINE = 5, 50, 100
HEADER = ("", "A", "B", "B - A", "tasks")


@dataclass(frozen=True)
class RecordedEvaluation:
    """An evaluation to compare: a model's name and, by split or benchmark, its tasks and sampling
    parameters."""

    subject: str
    sections: Mapping[str, Tasks]
    sampling: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, reports: Mapping[str, EvaluationReport]) -> RecordedEvaluation:
        subject = next(iter(reports.values())).subject
        return cls._from_plain(
            subject, {name: report.as_plain() for name, report in reports.items()}
        )

    @classmethod
    def read(cls, file: Path, option: str) -> RecordedEvaluation:
        """Reads a file that `ajet eval --out` wrote; `option` is the option that named it."""
        try:
            plain = json.loads(file.read_text(encoding="utf-8"))
            suites = plain["suites"] if "suites" in plain else [plain | {"name": plain["split"]}]
            return cls._from_plain(str(plain["subject"]), {str(s["name"]): s for s in suites})
        except OSError as error:
            raise ConfigError(
                f"{option} {file}: {error.strerror}", code=Code.RESULT_FILE
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(
                f"{option} {file}: not a result of `ajet eval … --out {file.name}`",
                code=Code.RESULT_FILE,
            ) from error

    @classmethod
    def _from_plain(cls, subject: str, plain: Mapping[str, Any]) -> RecordedEvaluation:
        sections = {name: _tasks(part["tasks"]) for name, part in plain.items()}
        return cls(
            subject, sections, {name: part.get("sampling", {}) for name, part in plain.items()}
        )

    def wins(self, name: str) -> dict[str, list[bool]]:
        section = self.sections.get(name, {})
        return {task: list(played.success) for task, played in section.items()}


@dataclass(frozen=True)
class ComparedPart:
    """The comparison on one split or benchmark, with the tasks of both sides. `notes` name the
    differences between the two evaluations other than the model."""

    name: str
    figures: Comparison
    a: Tasks
    b: Tasks
    notes: Sequence[str] = ()

    def rows(self) -> Iterator[tuple[str, Pair]]:
        yield "success", self.figures.success
        yield "reward", self.figures.reward
        for k, pair in self.figures.pass_at_k.items():
            if k > 1:  # pass@1 is the success
                yield f"pass@{k}", pair
        for tag, pair in self.figures.by_tag.items():
            yield f"tag: {tag}", pair

    @property
    def moved(self) -> str:
        """Returns how many tasks changed, as a sentence."""
        figures = self.figures
        rose, fell, same = len(figures.rose), len(figures.fell), figures.num_same
        return f"{rose} of {figures.num_compared} tasks rose, {fell} fell, {same} did not change"


@dataclass(frozen=True)
class Example:
    """A task whose share of successes changed, with a failed answer of the side that was worse and
    a successful one of the other side, where there are such answers."""

    task: str
    query: str
    shares: tuple[str, str]
    answers: tuple[str | None, str | None]

    @classmethod
    def of(cls, task: str, a: PlayedTask, b: PlayedTask) -> Example:
        rose = b.share > a.share
        answers = a.answer(of_success=not rose), b.answer(of_success=rose)
        return cls(task, a.query or b.query or task, (_share(a), _share(b)), answers)

    @property
    def line(self) -> str:
        query = " ".join(self.query.split())
        query = query if len(query) <= MAX_LINE else f"{query[: MAX_LINE - 1]}…"
        return f"{self.shares[0]} → {self.shares[1]}  {self.task}: {query}"


@dataclass(frozen=True)
class ComparisonReport(Report):
    """The names of two models, and the comparison on each split or benchmark that both played."""

    a: str
    b: str
    sections: Sequence[ComparedPart]

    @classmethod
    def of(cls, a: RecordedEvaluation, b: RecordedEvaluation) -> ComparisonReport:
        """Compares the sections that both have. Raises `ConfigError` if they share no task."""
        sections: list[ComparedPart] = []
        for name in (section for section in a.sections if section in b.sections):
            sides = a.sections[name], b.sections[name]
            if not any(task in sides[1] for task in sides[0]):
                continue
            figures = compare(*sides)
            sections.append(ComparedPart(name, figures, *sides, list(_notes(name, a, b, figures))))
        if not sections:
            have = " and ".join(f"{side.subject}: {', '.join(side.sections)}" for side in (a, b))
            raise ConfigError(
                f"--compare: the two have no task in common ({have})", code=Code.RESULT_FILE
            )
        return cls(a.subject, b.subject, sections)

    @staticmethod
    def files(file: Path) -> tuple[Path, ...]:
        """Returns the paths of the JSON, Markdown and HTML files; a device gets the JSON alone."""
        if is_special_file(file):
            return (file,)
        return tuple(file.with_suffix(suffix) for suffix in (".json", ".md", ".html"))

    def write(self, file: Path) -> tuple[Path, ...]:
        from ajet.read.reports.comparison_html import as_html

        files, contents = self.files(file), (self.as_json(), self.as_markdown(), as_html(self))
        for path, content in zip(files, contents, strict=False):
            write_output(path, content)
        return files

    def as_plain(self) -> dict[str, Any]:
        sections = [
            {
                "name": part.name,
                **part.figures.as_json(),
                "rose": [_plain(example) for example in examples(part, part.figures.rose)],
                "fell": [_plain(example) for example in examples(part, part.figures.fell)],
                "notes": list(part.notes),
            }
            for part in self.sections
        ]
        return {"a": self.a, "b": self.b, "parts": sections}

    def as_json(self) -> str:
        return json.dumps(self.as_plain(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"

    def as_markdown(self) -> str:
        lines = [f"# {_line(self.a)} and {_line(self.b)}", "", f"- A: {_line(self.a)}"]
        lines += [f"- B: {_line(self.b)}", "", "Intervals are of 95 %, over tasks."]
        for part in self.sections:
            lines += [
                "",
                f"## {part.name}",
                "",
                f"| {' | '.join(HEADER)} |",
                "|---|---|---|---|---|",
            ]
            lines += [
                f"| {_line(name)} | {' | '.join(cells(pair))} |" for name, pair in part.rows()
            ]
            lines += ["", f"{part.moved}."]
            lines += [f"- {_line(note)}" for note in part.notes]
            for title, tasks in (("rose", part.figures.rose), ("fell", part.figures.fell)):
                if not tasks:
                    continue
                lines += ["", f"### {title.capitalize()}: {number_shown(len(tasks), WRITTEN)}"]
                for example in examples(part, tasks[:WRITTEN]):
                    lines += ["", f"**{_line(example.task)}**, {' → '.join(example.shares)}", ""]
                    lines += _fenced(example.query)
                    for side, answer in zip("AB", example.answers, strict=True):
                        lines += [f"{side}:", "", *_fenced("(none)" if answer is None else answer)]
        return "\n".join(lines) + "\n"

    def shown(self) -> RenderableType:
        lines: list[RenderableType] = [
            Text(f"A: {self.a}", style="bold"),
            Text(f"B: {self.b}", style="bold"),
        ]
        for part in self.sections:
            table = Table(title=part.name, title_justify="left")
            for number, name in enumerate(HEADER):
                table.add_column(name, justify="left" if number == 0 else "right")
            for name, pair in part.rows():
                table.add_row(Text(name), *cells(pair))
            lines += [table, Text(part.moved)]
            lines += [Text(note, style="yellow") for note in part.notes]
            for title, tasks in (("rose", part.figures.rose), ("fell", part.figures.fell)):
                lines += [Text(f"{title}  {item.line}") for item in examples(part, tasks[:SHOWN])]
        return Lines(*lines)


def examples(part: ComparedPart, tasks: Sequence[str]) -> list[Example]:
    return [Example.of(task, part.a[task], part.b[task]) for task in tasks]


def cells(pair: Pair) -> list[str]:
    difference = pair.difference
    change = f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
    return [str(pair.a), str(pair.b), change, str(pair.num_tasks)]


def number_shown(num: int, most: int) -> str:
    """Returns "12", or "the first 5 of 12" where only `most` are shown."""
    return f"{num}" if num <= most else f"the first {most} of {num}"


def _notes(
    name: str, a: RecordedEvaluation, b: RecordedEvaluation, figures: Comparison
) -> Iterator[str]:
    """Yields the differences between the two evaluations other than the model."""
    if a.sampling[name] != b.sampling[name]:
        sides = (side.sampling[name].items() for side in (a, b))
        sampling = (", ".join(f"{key} {value}" for key, value in side) for side in sides)
        yield f"replies were sampled differently: A {' and B '.join(sampling)}"
    sizes = [{len(task.success) for task in side.sections[name].values()} for side in (a, b)]
    if sizes[0] != sizes[1]:
        counts = ("/".join(map(str, sorted(size))) for size in sizes)
        yield f"episodes of a task: A {', B '.join(counts)}"
    if set(figures.num_tasks) != {figures.num_compared}:
        yield (
            f"A has {figures.num_tasks[0]} tasks and B {figures.num_tasks[1]}: only the "
            f"{figures.num_compared} that both have are compared"
        )


def _share(task: PlayedTask) -> str:
    return f"{sum(task.success)}/{len(task.success)}"


def _plain(example: Example) -> dict[str, Any]:
    a, b = zip(example.shares, example.answers, strict=True)
    return {
        "task": example.task,
        "query": example.query,
        **{name: {"successes": side[0], "answer": side[1]} for name, side in (("a", a), ("b", b))},
    }


def _line(text: str) -> str:
    """Returns a text as one cell or line of Markdown."""
    return " ".join(text.split()).replace("|", "\\|")


def _fenced(text: str) -> list[str]:
    """Returns a Markdown code block, with a fence that the text does not contain."""
    fence = "```"
    while fence in text:
        fence += "`"
    return [f"{fence}text", text, fence, ""]


def _tasks(plain: Mapping[str, Any]) -> dict[str, PlayedTask]:
    return {
        str(task): PlayedTask(
            success=[bool(success) for success in row["success"]],
            reward=[None if reward is None else float(reward) for reward in row["reward"]],
            status=list(map(str, row["status"])),
            query=str(row.get("query", "")),
            tag=None if row.get("tag") is None else str(row["tag"]),
            answers=list(map(str, row.get("answers", ()))),
        )
        for task, row in plain.items()
    }
