"""Measures success on a split, or on named benchmarks, in this process, and compares models. A
run's checkpoint that is measured with the split, number of tasks and repeats of its validation gets
the figures that the run recorded, since the seeds are the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from loguru import logger

from ajet import assembly
from ajet.agents.frame_recorder import with_render_dir
from ajet.core.config import AjetConfig, load_config
from ajet.core.errors import DataError, KeysConflict
from ajet.core.errors.codes import Code
from ajet.core.images.store import ImageStore
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.inference.openai_endpoint import OpenAIEngine, api_key
from ajet.core.judge import make_judge
from ajet.core.judge.judge import BaseJudge
from ajet.core.process.bounded_loop import run_bounded
from ajet.core.record.step_warnings import UNUSED_MODEL
from ajet.core.rollout.request import RolloutRequest
from ajet.core.run.batch_plan import validation_sample
from ajet.core.task.reader import make_reader
from ajet.core.task.task import Task
from ajet.core.update.settings import UpdateSettings
from ajet.core.workflow.registry import WorkflowFactory
from ajet.engines.in_process import InProcessEngine
from ajet.read.reports.comparison_report import ComparisonReport, RecordedEvaluation
from ajet.read.reports.evaluation_report import EvaluationReport
from ajet.read.reports.suite_report import SuiteReport, SuiteResult
from ajet.suites.suite import Suite

Split = Literal["validation", "training"]


@dataclass(frozen=True)
class Subject:
    """The model to evaluate: the config's model if no field is set."""

    model: str | None = None
    checkpoint: Path | None = None
    endpoint: str | None = None
    endpoint_model: str | None = None

    @property
    def required(self) -> list[str]:
        """The keys that the config must set: the model, unless the subject names one."""
        return ["ajet.model.path"] if self.endpoint is None and self.model is None else []


@dataclass
class LoadedSubject:
    """A subject that can be sent requests. A chat endpoint has no template."""

    name: str
    engine: InProcessEngine | OpenAIEngine
    template: ChatTemplate | None


def evaluate_subject(
    config: AjetConfig,
    subject: Subject,
    *,
    split: Split = "validation",
    num_tasks: int | None = None,
    k: int | None = None,
    on_start: Callable[[int], None] = lambda num_episodes: None,
    on_episode: Callable[[], None] = lambda: None,
) -> EvaluationReport:
    """Runs `k` episodes of each of the first `num_tasks` tasks. None means the tasks and the number
    of repeats of the run's validation."""
    plan = EvaluationPlan.of(config, split=split, num_tasks=num_tasks, k=k)
    served = load_subject(config, subject)
    on_start(plan.num_episodes)
    [report] = run_bounded(measure([plan], served, on_episode))
    return report


@dataclass(frozen=True)
class EvaluationPlan:
    """What an evaluation runs: `k` episodes of each task, their workflows and their judge."""

    config: AjetConfig
    split: Split
    tasks: list[Task]
    k: int
    workflows: WorkflowFactory
    judge: BaseJudge | None

    @classmethod
    def of(cls, config: AjetConfig, *, split: Split, num_tasks: int | None, k: int | None) -> Self:
        """Reads the tasks, workflows and judge before a model is loaded, so that their errors come
        at once."""
        frames_dir = config.ajet.environment.render_save_dir
        if frames_dir is not None:  # keeps the frames of the run's validations
            config = with_render_dir(config, Path(frames_dir) / "eval")
        is_held_out = split == "validation"
        if config.learns_from_rows(is_training=not is_held_out):
            raise KeysConflict(
                f"the {split} split holds rows with given replies, which no workflow plays: "
                "evaluate tasks, with ajet.kind=reinforcement, or with "
                f"ajet.{config.ajet.kind}.validation=tasks for the validation split"
            )
        reader = make_reader(config)
        tasks = reader.get_validation_tasks() if is_held_out else reader.get_training_tasks()
        if not tasks:
            raise _no_validation_task(config.ajet.task_reader.type)
        tasks = tasks[:num_tasks] if num_tasks else validation_sample(tasks, config)
        workflows = assembly.load_workflows(config, tasks)
        repeats = k or config.validation_repeats
        return cls(config, split, tasks, repeats, workflows, make_judge(config))

    @property
    def num_episodes(self) -> int:
        return len(self.tasks) * self.k


def _no_validation_task(reader_type: str) -> DataError:
    """Returns the error for an empty validation split, whose figures would all be nan. (Readers
    refuse an empty training split themselves.)"""
    keys = {
        "dataset": "dataset.validation",
        "huggingface_dat_repo": "huggingface_dat_repo.validation_split",
        "jsonl_dataset_file": "jsonl_dataset_file.validation.file_path",
        "random_dummy": "random_dummy.num_validation",
        "env_service": "env_service.validation_split",
        "data_generation": "data_generation.query_reader",
        "tracing": "tracing.validation_fraction",
    }
    advice = (
        f"set ajet.task_reader.{keys[reader_type]}"
        if reader_type in keys
        else f"add some to {reader_type}"
    )
    return DataError(
        f"no validation tasks found; {advice} or pass --split training",
        code=Code.NO_VALIDATION_TASK,
    )


async def measure(
    plans: Sequence[EvaluationPlan], served: LoadedSubject, on_episode: Callable[[], None]
) -> list[EvaluationReport]:
    """Runs the plans one after another on one loaded model, then closes its engine."""
    try:
        return [await _measure(plan, served, on_episode) for plan in plans]
    finally:
        await served.engine.close()


async def _measure(
    plan: EvaluationPlan, served: LoadedSubject, on_episode: Callable[[], None]
) -> EvaluationReport:
    config = plan.config
    started_s = time.monotonic()
    with closing(assembly.make_gateway(config)) as gateway:
        runner = assembly.make_runner(
            config,
            served.engine,
            served.template,
            judge=plan.judge,
            gateway=gateway,
            workflows=plan.workflows,
        )
        groups = await runner.rollout(
            RolloutRequest(plan.tasks, step=0, mode="eval", num_repeat=plan.k),
            on_episode=lambda _: on_episode(),
        )
    if not any(t.turns for group in groups for t in group.trajectories):
        logger.warning(UNUSED_MODEL)
    report = EvaluationReport.of(
        groups,
        subject=served.name,
        split=plan.split,
        sampling=SamplingParams.from_config(config, "eval"),
        seed=config.ajet.seed,
        seconds=time.monotonic() - started_s,
    )
    if (line := report.call_forms.line(config)) is not None:
        logger.warning(line)
    return report


def load_subject(
    config: AjetConfig,
    subject: Subject,
    *,
    deterministic: bool | None = None,
    images: ImageStore | None = None,
) -> LoadedSubject:
    """Loads the subject, or connects to its endpoint. `deterministic` overrides the config;
    `images` are those of a recorded run that is continued."""
    if subject.endpoint is not None:
        address, model = subject.endpoint, subject.endpoint_model or "default"
        timeout_s = config.ajet.rollout.episode_timeout_s
        client = OpenAIEngine(address, model=model, api_key=api_key(), timeout_s=timeout_s)
        return LoadedSubject(f"{model} at {address}", client, None)
    from ajet.core.checkpoint.manifest import find_checkpoint
    from ajet.core.update.many_adapters import adapter_models
    from ajet.core.update.weights import overlay_checkpoint

    path = None if subject.checkpoint is None else find_checkpoint(subject.checkpoint)
    assembly.prepare_torch(config)
    loaded = assembly.load_policy_model(config, subject.model, images=images)
    lora = UpdateSettings.from_config(config).lora
    adapters = None
    if path is not None and lora is not None and lora.adapters:
        adapters = adapter_models(loaded.model, path, lora)
    elif path is not None:
        overlay_checkpoint(loaded.model, path, lora)
    template = assembly.make_template(loaded)
    name = f"model {loaded.name}" if path is None else f"checkpoint {path}"
    engine = assembly.make_engine(
        config, loaded, template, deterministic=deterministic, adapters=adapters
    )
    return LoadedSubject(name, engine, template)


@dataclass(frozen=True)
class SuiteOptions:
    """The suites to measure, with `num_samples` episodes of each of the first `num_tasks` tasks. A
    suite supplies the config's reader, workflow and judge.
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
        from ajet.suites.registry import CONFIG, find_suite, suite_overrides  # sandboxes: POSIX

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
