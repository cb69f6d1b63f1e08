"""Measures a model on named benchmarks, and compares it with another model on the same tasks. A
suite supplies the config's reader, workflow and judge; the rest is an evaluation of held-out tasks
(evaluating.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ajet.backbones.evaluating import EvaluationPlan, Subject, load_subject, measure
from ajet.core.config import AjetConfig, load_config
from ajet.core.process.bounded_loop import run_bounded
from ajet.read.reports.comparison_report import ComparisonReport
from ajet.read.reports.evaluation_report import EvaluationReport
from ajet.read.reports.recorded_evaluation import RecordedEvaluation
from ajet.read.reports.suite_report import SuiteReport, SuiteResult
from ajet.suites.registry import CONFIG, find_suite, suite_overrides
from ajet.suites.suite import Suite


@dataclass(frozen=True)
class SuiteOptions:
    """The suites to measure, with `num_samples` episodes of each of the first `num_tasks` tasks.
    `data` is a folder of files to read instead of the suites' packages; `conf` and `overrides` are
    the user's."""

    suites: Sequence[str]
    data: Path | None = None
    num_tasks: int | None = None
    num_samples: int = 1
    conf: Path | None = None
    overrides: Sequence[str] = ()
    project_dir: Path | None = None

    def configs(self, subject: Subject) -> list[tuple[Suite, AjetConfig]]:
        """Returns each suite with the config for measuring this subject on it."""
        path = self.conf or config_of_run(subject.checkpoint) or CONFIG
        configs: list[tuple[Suite, AjetConfig]] = []
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
            configs.append((suite, config))
        return configs


def config_of_run(checkpoint: Path | None) -> Path | None:
    """Returns the config of the run that this checkpoint or run folder belongs to, if any."""
    if checkpoint is None:
        return None
    files = (folder / "config.yaml" for folder in (checkpoint, *checkpoint.resolve().parents[:2]))
    return next((file for file in files if file.is_file()), None)


def as_subject(name: str) -> Subject:
    """Returns the model or checkpoint that an argument such as `--against` names."""
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
    baseline, compared = None, None
    if against is not None and is_recorded(against):
        baseline = RecordedEvaluation.read(Path(against), "--against")
    elif against is not None:
        compared = as_subject(against)
    plans = _plans(options, subject)
    on_notices(dict.fromkeys(line for _, plan in plans for line in plan.config.notices))
    on_start((2 if compared else 1) * sum(plan.num_episodes for _, plan in plans))
    if compared is not None:
        compared_options = replace(options, conf=_config_of_other(options, [subject], compared))
        reports = _reports(_plans(compared_options, compared), compared, on_episode)
        baseline = RecordedEvaluation.of(reports)
    reports = _reports(plans, subject, on_episode)
    results = [
        SuiteResult(
            suite.name,
            {"about": suite.about, "data": suite.source, "prompting": suite.asked(plan.config)},
            reports[suite.name],
            None if baseline is None else baseline.wins(suite.name),
        )
        for suite, plan in plans
    ]
    return SuiteReport(results, None if baseline is None else baseline.subject)


def measure_suites(
    options: SuiteOptions,
    subject: Subject,
    other_subjects: Sequence[Subject],
    *,
    on_notices: Callable[[Iterable[str]], None],
    on_start: Callable[[int], None],
    on_episode: Callable[[], None],
) -> dict[str, EvaluationReport]:
    """Measures one of several models under comparison, and returns its reports by suite."""
    plans = _plans(
        replace(options, conf=_config_of_other(options, other_subjects, subject)), subject
    )
    on_notices(dict.fromkeys(line for _, plan in plans for line in plan.config.notices))
    on_start(sum(plan.num_episodes for _, plan in plans))
    return _reports(plans, subject, on_episode)


def _config_of_other(
    options: SuiteOptions, subjects: Sequence[Subject], compared: Subject
) -> Path | None:
    """Returns the config for the model that is compared with `subjects`: its run's, or else one of
    theirs, so that a run's base model is prompted with the run's chat template."""
    checkpoints = [compared.checkpoint, *(subject.checkpoint for subject in subjects)]
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
    """Loads the model once, with the longest context among the suites, and measures it."""
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
    """Compares the two. `measure` returns a model's reports by split or benchmark."""
    # Files are read first: an unreadable one fails before minutes are spent on a model.
    files = {n: RecordedEvaluation.read(Path(n), "--compare") for n in (a, b) if is_recorded(n)}
    sides = [
        files[name] if name in files else RecordedEvaluation.of(measure(as_subject(name)))
        for name in (a, b)
    ]
    return ComparisonReport.of(*sides)
