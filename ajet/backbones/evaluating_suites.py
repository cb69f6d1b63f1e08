"""Measures a model on benchmarks by name, and compares it with another on the same tasks.

    --suite bfcl_simple --suite gsm8k   ->  a config for each  ->  one loaded model  ->  one table

An evaluation of a suite is an evaluation of held-out tasks like any other (evaluating.py): the
suite's reader, workflow and judge stand in the config. A side of a comparison is the JSON file of
an earlier evaluation, or a model, a checkpoint or a run folder, which is measured. Not covered:
what a suite is (ajet/suites).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ajet.backbones.evaluating import EvaluationPlan, Subject, load_subject, measure
from ajet.core.bounded_loop import run_bounded
from ajet.core.config import AjetConfig, load_config
from ajet.reports.comparison_report import ComparisonReport
from ajet.reports.evaluation_report import EvaluationReport
from ajet.reports.recorded_evaluation import RecordedEvaluation
from ajet.reports.suite_report import SuiteReport, SuiteResult
from ajet.suites.registry import CONFIG, find_suite, suite_overrides
from ajet.suites.suite import Suite


@dataclass(frozen=True)
class SuiteOptions:
    """Holds what is measured: the suites, with `num_samples` episodes of each of the first
    `num_tasks` tasks, of a folder of files in the place of packages. `conf` and `overrides` are the
    user's."""

    suites: Sequence[str]
    data: Path | None = None
    num_tasks: int | None = None
    num_samples: int = 1
    conf: Path | None = None
    overrides: Sequence[str] = ()
    project_dir: Path | None = None

    def configs(self, subject: Subject) -> list[tuple[Suite, AjetConfig]]:
        """Returns the suites with the config by which this subject is measured on each."""
        path = self.conf or config_of_run(subject.checkpoint) or CONFIG
        found: list[tuple[Suite, AjetConfig]] = []
        for name in self.suites:
            suite = find_suite(name)
            settings = [*suite_overrides(suite, self.data, self.num_samples), *self.overrides]
            config = load_config(
                path,
                settings,
                backbone="debug",
                project_dir=self.project_dir,
                required=subject.required,
            )
            found.append((suite, config))
        return found


def config_of_run(checkpoint: Path | None) -> Path | None:
    """Returns the config of the run that a checkpoint or a run folder is of; None where it is of
    none."""
    if checkpoint is None:
        return None
    files = (folder / "config.yaml" for folder in (checkpoint, *checkpoint.resolve().parents[:2]))
    return next((file for file in files if file.is_file()), None)


def as_subject(name: str) -> Subject:
    """Returns a model or a checkpoint, as `--against` names one of them."""
    folder = Path(name)
    is_checkpoint = (folder / "manifest.json").is_file() or (folder / "checkpoints").is_dir()
    return Subject(checkpoint=folder) if is_checkpoint else Subject(model=name)


def evaluate_suites(
    options: SuiteOptions,
    subject: Subject,
    *,
    against: str | None = None,
    on_notices: Callable[[Iterable[str]], None] = lambda notices: None,
    on_start: Callable[[int], None] = lambda num_episodes: None,
    on_episode: Callable[[], None] = lambda: None,
) -> SuiteReport:
    """Measures `subject` on each suite. `against` is another model, a checkpoint, or the JSON file
    of an earlier evaluation. `on_notices` is called with a line for each setting without effect."""
    earlier = against is not None and is_recorded(against)
    other = None
    if against is not None and earlier:
        other = RecordedEvaluation.read(Path(against), "--against")
    plans = _plans(options, subject)
    on_notices(dict.fromkeys(line for _, plan in plans for line in plan.config.notices))
    num_models = 2 if against is not None and other is None else 1
    on_start(num_models * sum(plan.num_episodes for _, plan in plans))
    if against is not None and other is None:
        compared = replace(options, conf=_config_of_other(options, [subject], as_subject(against)))
        others = _reports(_plans(compared, as_subject(against)), as_subject(against), on_episode)
        other = RecordedEvaluation.of(others)
    reports = _reports(plans, subject, on_episode)
    results = [
        SuiteResult(
            suite.name,
            {"about": suite.about, "data": suite.source, "prompting": suite.prompting},
            reports[suite.name],
            None if other is None else other.wins(suite.name),
        )
        for suite, _ in plans
    ]
    return SuiteReport(results, None if other is None else other.subject)


def measure_suites(
    options: SuiteOptions,
    subject: Subject,
    others: Sequence[Subject],
    *,
    on_notices: Callable[[Iterable[str]], None],
    on_start: Callable[[int], None],
    on_episode: Callable[[], None],
) -> dict[str, EvaluationReport]:
    """Measures one of several models that are compared, and returns its reports by suite."""
    plans = _plans(replace(options, conf=_config_of_other(options, others, subject)), subject)
    on_notices(dict.fromkeys(line for _, plan in plans for line in plan.config.notices))
    on_start(sum(plan.num_episodes for _, plan in plans))
    return _reports(plans, subject, on_episode)


def _config_of_other(
    options: SuiteOptions, subjects: Sequence[Subject], other: Subject
) -> Path | None:
    """Returns the config of the model that is compared with `subjects`: its run's, or one of
    theirs, so that a run's base model is asked in the run's chat template."""
    checkpoints = [other.checkpoint, *(each.checkpoint for each in subjects)]
    return options.conf or next(filter(None, map(config_of_run, checkpoints)), None)


def _plans(options: SuiteOptions, subject: Subject) -> list[tuple[Suite, EvaluationPlan]]:
    return [
        (
            suite,
            EvaluationPlan.of(config, split="validation", num_tasks=options.num_tasks, k=None),
        )
        for suite, config in options.configs(subject)
    ]


def _reports(
    plans: Sequence[tuple[Suite, EvaluationPlan]], subject: Subject, on_episode: Callable[[], None]
) -> dict[str, EvaluationReport]:
    """Loads the model once, with the longest context that a suite asks for, and measures it."""
    widest = max((plan.config for _, plan in plans), key=lambda c: c.ajet.rollout.max_model_len)
    served = load_subject(widest, subject)
    reports = run_bounded(measure([plan for _, plan in plans], served, on_episode))
    return {suite.name: report for (suite, _), report in zip(plans, reports, strict=True)}


def is_recorded(name: str) -> bool:
    """Returns whether a side of the comparison is a file of an earlier evaluation."""
    return name.endswith(".json")


def compare_evaluations(
    a: str, b: str, measure: Callable[[Subject], Mapping[str, EvaluationReport]]
) -> ComparisonReport:
    """Compares the two. A file is read, and found wanting, before a model is measured; `measure`
    returns the reports of a model by split or benchmark."""
    names = (a, b)
    read = {n: RecordedEvaluation.read(Path(n), "--compare") for n in names if is_recorded(n)}
    sides = [
        read[name] if name in read else RecordedEvaluation.of(measure(as_subject(name)))
        for name in names
    ]
    return ComparisonReport.of(*sides)
