"""Measures success on a split in this process, with the seeds of the run's own validation.

    config's model | a model | a checkpoint  ──> in-process engine ──┐
    an OpenAI-compatible address             ──> chat endpoint ──────┴─> episodes ─> report

A checkpoint that is measured with the split, number of tasks and repeats of its run's validation
gets the figures that the run recorded.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from loguru import logger

from ajet import assembly
from ajet.agents.frame_recorder import with_render_dir
from ajet.core.config import AjetConfig
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
from ajet.read.reports.evaluation_report import EvaluationReport

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
