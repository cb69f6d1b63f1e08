"""Implements `ajet eval --compare A B`: two models on the same tasks, in pairs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from ajet.cli.eval import episode_progress, loaded_config, show_report
from ajet.cli.notices import show_notices

if TYPE_CHECKING:
    from ajet.backbones.evaluating import Subject
    from ajet.backbones.evaluating_suites import SuiteOptions
    from ajet.reports.evaluation_report import EvaluationReport


def run_comparison(
    sides: tuple[str, str],
    suites: SuiteOptions | None,
    conf: Path | None,
    overrides: list[str],
    split: Literal["validation", "training"],
    num_tasks: int | None,
    k: int | None,
    out: Path | None,
    project_dir: Path | None,
) -> None:
    """Measures what is no file of an earlier evaluation, on the suites or on a split of the
    config's own tasks, and shows the comparison."""
    from ajet.core.rollout.gc_thresholds import infrequent_gc

    with infrequent_gc():  # most objects that torch and transformers make stay
        from ajet.backbones.evaluating import evaluate_subject
        from ajet.backbones.evaluating_suites import (
            as_subject,
            compare_evaluations,
            is_recorded,
            measure_suites,
        )

    measured = [name for name in sides if not is_recorded(name)]
    if measured and suites is None and conf is None:
        raise typer.BadParameter(
            f"--compare: {measured[0]!r} is no JSON file of an earlier --out, so it is measured: "
            "give --conf, or a benchmark with --suite"
        )

    def measure(subject: Subject) -> dict[str, EvaluationReport]:
        with episode_progress() as (on_start, on_episode):
            if suites is not None:
                others = [as_subject(name) for name in measured]
                return measure_suites(
                    suites, subject, others, on_notices=show_notices, on_start=on_start,
                    on_episode=on_episode,
                )  # fmt: skip
            assert conf is not None
            config = loaded_config(conf, overrides, subject, project_dir)
            report = evaluate_subject(
                config, subject, split=split, num_tasks=num_tasks, k=k, on_start=on_start,
                on_episode=on_episode,
            )  # fmt: skip
            return {split: report}

    show_report(compare_evaluations(*sides, measure), out)
