"""Implements `ajet eval --suite NAME`: benchmarks by name, as one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ajet.cli.eval import episode_progress, show_report
from ajet.cli.notices import show_notices

if TYPE_CHECKING:
    from ajet.backbones.evaluating import Subject
    from ajet.backbones.evaluating_suites import SuiteOptions


def run_suites(
    options: SuiteOptions, subject: Subject, against: str | None, out: Path | None
) -> None:
    """Measures the subject on each suite, and shows the table; `out` is a JSON file, beside which
    the table is written in Markdown, or ``-``."""
    from ajet.backbones.evaluating_suites import evaluate_suites

    with episode_progress() as (on_start, on_episode):
        report = evaluate_suites(
            options,
            subject,
            against=against,
            on_notices=show_notices,
            on_start=on_start,
            on_episode=on_episode,
        )
    show_report(report, out)
