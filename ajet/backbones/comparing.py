"""Compares two evaluations, each recorded or measured now, for `ajet eval --compare A B`.

    before.json                      what an earlier `ajet eval … --out` wrote
    launcher_record/solver           a run folder or a checkpoint, measured now
    Qwen/Qwen2.5-0.5B-Instruct       a model, measured now

Not covered: how a model is measured (evaluating.py, evaluating_suites.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ajet.backbones.evaluating import Subject
from ajet.backbones.evaluating_suites import as_subject
from ajet.reports.comparison_report import ComparisonReport
from ajet.reports.evaluation_report import EvaluationReport
from ajet.reports.recorded_evaluation import RecordedEvaluation

OPTION = "--compare"
Measure = Callable[[Subject], Mapping[str, EvaluationReport]]
"""Returns the reports of a model by split or benchmark."""


def is_recorded(name: str) -> bool:
    """Returns whether a side of the comparison is a file of an earlier evaluation."""
    return name.endswith(".json")


def compare_evaluations(a: str, b: str, measure: Measure) -> ComparisonReport:
    """Compares the two. A file is read, and found wanting, before a model is measured."""
    read = {
        name: RecordedEvaluation.read(Path(name), OPTION) for name in (a, b) if is_recorded(name)
    }
    sides = [
        read[name] if name in read else RecordedEvaluation.of(measure(as_subject(name)))
        for name in (a, b)
    ]
    return ComparisonReport.of(*sides)
