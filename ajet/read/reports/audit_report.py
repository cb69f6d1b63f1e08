"""The report of `ajet inspect audit`: the figures of one run as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from statistics import median
from typing import Any

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ajet.read.recorded_run import RecordedRun
from ajet.read.reports.audit import AuditFigures
from ajet.read.reports.report import Report

SHOWN = 10
Row = tuple[str, int | str, str]


@dataclass(frozen=True)
class AuditReport(Report):
    """The figures of one run. `template` is the fingerprint of the chat template's text."""

    run: str
    model: str
    template: str
    figures: AuditFigures

    @classmethod
    def from_parts(cls, run: RecordedRun, figures_of_parts: Iterable[AuditFigures]) -> AuditReport:
        figures = AuditFigures()
        for part in figures_of_parts:
            figures.add(part)
        fingerprint = sha256(run.template.text.encode()).hexdigest()[:12]
        model = str(run.config.ajet.model.path)
        return cls(str(run.folder.path), model, fingerprint, figures)

    @property
    def is_sound(self) -> bool:
        return not self.figures.num_faults

    def as_plain(self) -> dict[str, Any]:
        figures = dict(vars(self.figures))
        positions = figures.pop("drift_at")
        return {
            "run": self.run,
            "model": self.model,
            "template": self.template,
            "sound": self.is_sound,
            **figures,
            "drift_rate": _share(len(positions), self.figures.rendered),
            "drift_first_position_min": min(positions, default=None),
            "drift_first_position_median": median(positions) if positions else None,
        }

    def shown(self) -> RenderableType:
        table = Table()
        table.add_column()
        table.add_column("number", justify="right")
        table.add_column("of which")
        for section in (self._calls(), self._renders(), self._tokens()):
            for name, number, detail in section:
                table.add_row(name, f"{number:,}" if isinstance(number, int) else number, detail)
            table.add_section()
        title = Text(f"{self.model}, template {self.template}: {self.run}", style="bold")
        return Lines(title, table, *self._faults())

    def _calls(self) -> Iterator[Row]:
        figures = self.figures
        yield "episodes", figures.episodes, ""
        share = _percent(figures.continued, figures.calls)
        yield "calls", figures.calls, f"{figures.continued:,} continued" + (share and f" ({share})")
        if figures.calls_without_ids:
            yield "  of a chat endpoint", figures.calls_without_ids, "it shows no ids"
        if figures.calls_with_ids_alone:
            yield "  with ids alone", figures.calls_with_ids_alone, "there is nothing to render"
        yield "branches", figures.branches.total(), ""
        for reason, number in figures.branches.most_common():
            yield "", number, reason
        if figures.timelines:
            yield "timelines trained", figures.timelines, ""

    def _renders(self) -> Iterator[Row]:
        figures = self.figures
        num_drifted = figures.drift.total()
        some = figures.episodes_rendered < figures.episodes
        of = f"of {figures.episodes_rendered:,} episodes; --all renders every one" if some else ""
        yield "rendered afresh", figures.rendered, of
        yield "  the same ids", figures.same, _percent(figures.same, figures.rendered)
        yield "  drift", num_drifted, _percent(num_drifted, figures.rendered)
        for cause, number in figures.drift.most_common():
            yield "", number, cause
        if figures.drift_at:
            at = figures.drift_at
            yield "  first position", f"{min(at):,}", f"the least; median {median(at):,g}"
        for reason, number in figures.not_rendered.most_common():
            yield "  cannot be rendered", number, reason
        num = figures.replies_read_otherwise
        yield "replies parsed differently", num, f"of {figures.replies:,}, by today's parser"

    def _tokens(self) -> Iterator[Row]:
        figures = self.figures
        yield "sampled, trainable", figures.sampled.total(), _by_status(figures.sampled)
        yield "trained", figures.trained.total(), _by_status(figures.trained)
        for reason, number in figures.untrained.most_common():
            yield "  not trained", number, reason

    def _faults(self) -> Iterator[Text]:
        num = self.figures.num_faults
        if not num:
            yield Text("sound: no faults", style="bold green")
            return
        for fault in self.figures.faults[:SHOWN]:
            yield Text(fault, style="red")
        more = f", {SHOWN} of them above" if num > SHOWN else ""
        yield Text(f"not sound: {num} fault{'s' * (num > 1)}{more}", style="bold red")


def _share(number: int, of: int) -> float | None:
    return number / of if of else None


def _percent(number: int, of: int) -> str:
    share = _share(number, of)
    return "" if share is None else f"{share:.1%}"


def _by_status(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {status}" for status, number in counts.items() if number)
