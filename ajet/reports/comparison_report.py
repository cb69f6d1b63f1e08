"""The report of `ajet eval --compare A B`: two models on the same tasks, in four forms.

                 A                      B                      B - A                    tasks
    success      0.483 [0.434, 0.531]   0.512 [0.463, 0.561]   +0.029 [-0.012, +0.071]    400
    pass@4       …
    tag: easy    …
    57 tasks rose, 45 fell, 298 are the same

The terminal shows some of the tasks that rose and fell; Markdown and HTML (comparison_html.py) have
more, with both models' answers; JSON has the figures and the names of all. Not covered: the
figures (core/record/comparison.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError
from ajet.core.record.atomic_file import is_special_file, write_output
from ajet.core.record.comparison import Comparison, Pair, PlayedTask, Tasks, compare
from ajet.core.record.evaluation import IntervalEstimate
from ajet.reports.recorded_evaluation import RecordedEvaluation

SHOWN, WRITTEN, MAX_LINE = 5, 50, 100
HEADER = ("", "A", "B", "B - A", "tasks")


@dataclass(frozen=True)
class ComparedPart:
    """Holds the comparison on one split or benchmark, with the tasks of both sides. `notes` say in
    what the two evaluations differ besides the model."""

    name: str
    figures: Comparison
    a: Tasks
    b: Tasks
    notes: Sequence[str] = ()

    def rows(self) -> Iterator[tuple[str, Pair]]:
        """Yields the rows of the table."""
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
    """Holds a task whose share of successes changed. The answers are a failed one of the side that
    was worse and a successful one of the other, where there are such."""

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
class ComparisonReport:
    """Holds two models' names, and the comparison on each split or benchmark that both played."""

    a: str
    b: str
    parts: Sequence[ComparedPart]

    @classmethod
    def of(cls, a: RecordedEvaluation, b: RecordedEvaluation) -> ComparisonReport:
        """Compares the parts that both have. Raises `ConfigError` where nothing is the same."""
        parts: list[ComparedPart] = []
        for name in (each for each in a.parts if each in b.parts):
            sides = a.parts[name], b.parts[name]
            if not any(task in sides[1] for task in sides[0]):
                continue
            figures = compare(*sides)
            parts.append(ComparedPart(name, figures, *sides, list(_notes(name, a, b, figures))))
        if not parts:
            have = " and ".join(f"{each.subject}: {', '.join(each.parts)}" for each in (a, b))
            raise ConfigError(
                f"--compare: the two have no task in common ({have})", code=Code.RESULT_FILE
            )
        return cls(a.subject, b.subject, parts)

    @staticmethod
    def files(file: Path) -> tuple[Path, ...]:
        """Returns the JSON, the Markdown and the HTML that are written beside each other; a device
        alone, which gets the JSON."""
        if is_special_file(file):
            return (file,)
        return tuple(file.with_suffix(suffix) for suffix in (".json", ".md", ".html"))

    def write(self, file: Path) -> tuple[Path, ...]:
        """Writes the files, and returns them."""
        from ajet.reports.comparison_html import as_html

        files, contents = self.files(file), (self.as_json(), self.as_markdown(), as_html(self))
        for each, content in zip(files, contents, strict=False):
            write_output(each, content)
        return files

    def as_json(self) -> str:
        parts = [
            {
                "name": part.name,
                **part.figures.as_json(),
                "rose": [_plain(each) for each in examples(part, part.figures.rose)],
                "fell": [_plain(each) for each in examples(part, part.figures.fell)],
                "notes": list(part.notes),
            }
            for part in self.parts
        ]
        plain = {"a": self.a, "b": self.b, "parts": parts}
        return json.dumps(plain, indent=1, allow_nan=False, ensure_ascii=False) + "\n"

    def as_markdown(self) -> str:
        lines = [f"# {_line(self.a)} and {_line(self.b)}", "", f"- A: {_line(self.a)}"]
        lines += [f"- B: {_line(self.b)}", "", "Intervals are of 95 %, over tasks."]
        for part in self.parts:
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
        """Returns the tables for the terminal, and the tasks that changed most."""
        lines: list[RenderableType] = [
            Text(f"A: {self.a}", style="bold"),
            Text(f"B: {self.b}", style="bold"),
        ]
        for part in self.parts:
            table = Table(title=part.name, title_justify="left")
            for number, name in enumerate(HEADER):
                table.add_column(name, justify="left" if number == 0 else "right")
            for name, pair in part.rows():
                table.add_row(Text(name), *cells(pair))
            lines += [table, Text(part.moved)]
            lines += [Text(note, style="yellow") for note in part.notes]
            for title, tasks in (("rose", part.figures.rose), ("fell", part.figures.fell)):
                lines += [Text(f"{title}  {each.line}") for each in examples(part, tasks[:SHOWN])]
        return Lines(*lines)


def examples(part: ComparedPart, tasks: Sequence[str]) -> list[Example]:
    return [Example.of(task, part.a[task], part.b[task]) for task in tasks]


def cells(pair: Pair) -> list[str]:
    """Returns the cells of a row behind its name."""
    return [str(pair.a), str(pair.b), signed(pair.difference), str(pair.num_tasks)]


def number_shown(num: int, most: int) -> str:
    """Returns how many of so many are shown."""
    return f"{num}" if num <= most else f"the first {most} of {num}"


def signed(estimate: IntervalEstimate) -> str:
    return f"{estimate.value:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]"


def _notes(
    name: str, a: RecordedEvaluation, b: RecordedEvaluation, figures: Comparison
) -> Iterator[str]:
    """Yields in what the two evaluations differ besides the model."""
    if a.sampling[name] != b.sampling[name]:
        shown = (", ".join(f"{k} {v}" for k, v in each.sampling[name].items()) for each in (a, b))
        yield f"replies were sampled otherwise: A {' and B '.join(shown)}"
    sizes = [{len(task.success) for task in each.parts[name].values()} for each in (a, b)]
    if sizes[0] != sizes[1]:
        counts = ("/".join(map(str, sorted(each))) for each in sizes)
        yield f"episodes of a task: A {', B '.join(counts)}"
    if set(figures.num_tasks) != {figures.num_compared}:
        yield (
            f"A has {figures.num_tasks[0]} tasks and B {figures.num_tasks[1]}: compared are the "
            f"{figures.num_compared} that both have"
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
    """Returns lines of Markdown that show a text as it is, whatever is in it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return [f"{fence}text", text, fence, ""]
