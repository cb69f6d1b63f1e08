"""Finds what would stop a run later, before data is read or a model loaded.

    backbone                built? does it     workflow, judge   do they load, can they be called?
                            fit the nodes?
    server                  is it installed?   update            do its settings go together?
    chat_template, resume   are they there?    logger            is its package installed?
    a checkpoint            is it of this model?
    buffer                  is it on a disk that two commands can share?

`ajet train` and `ajet check` check all of it, `ajet debug` and `ajet eval` only the classes.
Training stops at errors of findings.py too. Not covered: the data, and making the judge (`ajet
check` does both).
"""

import inspect
import os
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from ajet.backbones import runs_on_ray
from ajet.cli.finding import stop_at_errors
from ajet.cli.findings import run_findings
from ajet.cluster.session import require_ray
from ajet.core.buffer.network_file_system import network_file_system
from ajet.core.config import AjetConfig
from ajet.core.config.precision import describe_precision
from ajet.core.config.trainer import TrainerConfig
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError, ModelError
from ajet.core.importing import (
    ARROW,
    load_attribute,
    require_arguments,
    require_method,
    require_no_arguments,
)
from ajet.core.judge import judge_class, judge_spec
from ajet.core.judge.judge import BaseJudge, GroupJudge
from ajet.core.model.template_file import template_file
from ajet.core.record.run_folder import RunFolder, is_file
from ajet.core.record.trace_follower import MODULES
from ajet.core.record.trackers import PACKAGES, not_installed
from ajet.core.task.task import Task
from ajet.core.update.settings import CriticSettings, UpdateSettings
from ajet.core.workflow.agent_loop import LoopWorkflow, check_agent_loop
from ajet.core.workflow.graph import GraphWorkflow, check_graph, read_agent_cfg
from ajet.core.workflow.registry import WorkflowFactory
from ajet.core.workflow.workflow import Workflow
from ajet.plan.model_config import find_config, sizes
from ajet.servers.serving import check_server

WORKFLOW_KEY, JUDGE_KEY = "ajet.rollout.user_workflow", "ajet.task_judge.judge_protocol"


def check_run(config: AjetConfig, *, stops_at_findings: bool = True) -> list[str]:
    """Raises ConfigError for the first thing at which training would stop before its first step.
    Returns warnings about the rest; without `stops_at_findings` there are none, since `ajet check`
    shows every finding itself."""
    if runs_on_ray(config):
        require_ray()
        _check_server(config)
    check_classes(config)
    _check_update(config)
    _check_files(config)
    _check_buffer(config)
    _check_loggers(config.ajet.trainer_common)
    if not stops_at_findings:
        return []
    # Without a workflow of its own the config leaves it to the rows, which `ajet check` reads.
    is_named = config.ajet.rollout.user_workflow is not None
    workflows = [WorkflowFactory.from_config(config).default] if is_named else []
    findings = run_findings(config, workflows)
    stop_at_errors(findings)
    return [finding.text for finding in findings if finding.level == "warning"]


def _check_update(config: AjetConfig) -> None:
    """Raises ConfigError for settings of the update that do not go together."""
    UpdateSettings.from_config(config)
    if config.ajet.trainer_common.algorithm.estimator.needs_critic:
        CriticSettings.from_config(config)


def _check_buffer(config: AjetConfig) -> None:
    """Raises ConfigError if explorer and trainer, as two commands, would share an SQLite database
    on a network file system: neither knows whether the other is on the same machine."""
    if config.ajet.backbone != "trinity" or config.trinity.mode not in ("train", "explore"):
        return
    url = config.trinity.buffer.url or f"sqlite:///{RunFolder(config.run_folder).buffer_db}"
    if not url.startswith("sqlite"):
        return
    database = Path(url.partition(":///")[2])
    if (kind := network_file_system(database)) is not None:
        raise ConfigError(
            f"trinity.mode={config.trinity.mode}: {database} would be on a network file system "
            f"({kind}), where SQLite is not safe between two commands: set trinity.buffer.url to a "
            "PostgreSQL database (postgresql+psycopg://…), or, for two commands on one machine, "
            "choose a disk of that machine with --exp-dir",
            code=Code.BUFFER_UNUSABLE,
        )


def _check_server(config: AjetConfig) -> None:
    """Raises ConfigError if the run's inference server is not installed on this machine. Where the
    engines are on other machines they look there: on several nodes, on a Ray that is joined, and
    with GPUs that this machine does not have."""
    if config.ajet.trainer_common.nnodes > 1 or os.environ.get("RAY_ADDRESS", "").strip():
        return
    from ajet.cluster.machine import configured_placement, local_node

    placement = configured_placement(config)
    if placement.engines and not (placement.on_gpus and local_node().gpus == 0):
        check_server(config, on_gpu=placement.on_gpus)


def cluster_notices(config: AjetConfig) -> list[str]:
    """Says where a run on Ray would be placed, in what it computes, and what its GPUs may be too
    small for.

    Raises ConfigError if it cannot be placed on the nodes that the config names.
    """
    if not runs_on_ray(config):
        return []
    from ajet.plan.fits import configured_problems

    placement, problems = configured_problems(config)
    counts = {
        "trainer ranks": len(placement.trainer),
        "engines": len(placement.engines),
        "rollout workers": len(placement.workers),
        "nodes": len(placement.nodes),
    }
    device = "GPUs" if placement.on_gpus else "CPU"
    placed = ", ".join(f"{count} {name}" for name, count in counts.items())
    return [
        f"on {device}: {placed}; `ajet plan` shows where, and what they need",
        describe_precision(config, gpu=placement.on_gpus),
        *problems,
    ]


def check_classes(config: AjetConfig) -> None:
    """Raises ConfigError unless the workflow and the judge load and have the methods that are
    called."""
    _check_folder_names(config)
    workflow = WorkflowFactory.from_config(config).default
    _check_workflow(workflow, config, f"{WORKFLOW_KEY}: {config.ajet.rollout.user_workflow!r}")
    spec = judge_spec(config.ajet.task_judge)
    judge = judge_class(spec, config.base_dirs)
    if judge is not None:
        _check_judge(judge, f"{JUDGE_KEY}: {spec!r}")
    _check_own_algorithms(config)


def _check_folder_names(config: AjetConfig) -> None:
    """Raises ConfigError for a folder whose name the locale's encoding cannot express, because
    libraries that write into it take names as UTF-8."""
    for folder in [config.run_folder, *config.base_dirs]:
        try:
            str(folder).encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"{str(folder)!a}: the locale's encoding {sys.getfilesystemencoding()} has no "
                "letters for this folder's name; set LC_ALL=C.UTF-8, or use another folder",
                code=Code.FOLDER_NAME,
            ) from error


def _check_own_algorithms(config: AjetConfig) -> None:
    """Raises ConfigError unless the user's own loss, estimator, reward shaping and order of tasks
    load, and the functions can be called as they will be."""
    algorithm, where = config.ajet.trainer_common.algorithm, "ajet.trainer_common.algorithm"
    specs = {
        f"{where}.policy_loss": (algorithm.policy_loss, ("tokens", "settings")),
        f"{where}.adv_estimator": (algorithm.adv_estimator, ("groups", "options")),
        f"{where}.reward_shaping": (algorithm.reward_shaping, ("groups",)),
        "ajet.data.sampler": (config.ajet.data.sampler, None),  # one of two forms
    }
    for key, (spec, arguments) in specs.items():
        if spec is None or ARROW not in spec:
            continue
        found = load_attribute(spec, base_dirs=config.base_dirs, location=key)
        if arguments is not None and inspect.isfunction(found):
            require_arguments(found, arguments, f"{key}: {spec!r}")


def _check_judge(judge: type[BaseJudge], where: str) -> None:
    """Raises ConfigError unless the judge has the method by which it is called."""
    if issubclass(judge, GroupJudge):
        arguments = ("workflow_tasks", "workflow_outputs")
        require_method(judge, "compute_group_rewards", GroupJudge, arguments, where)
    else:
        arguments = ("workflow_task", "workflow_output")
        require_method(judge, "compute_reward", BaseJudge, arguments, where)


def check_agents(config: AjetConfig, tasks: Iterable[Task]) -> None:
    """Raises ConfigError unless each task's `agent_name`, where it has one, is that of a
    workflow."""
    tasks = list(tasks)
    for workflow in WorkflowFactory.from_config(config).classes_for(tasks):
        _check_workflow(workflow, config, "agent_name of a task")
    for path in dict.fromkeys(str(task.metadata.get("agent_cfg_path") or "") for task in tasks):
        read_agent_cfg(path, config.base_dirs)


def _check_workflow(workflow: type[Workflow], config: AjetConfig, where: str) -> None:
    """Raises ConfigError unless an episode can make the workflow and run it."""
    if issubclass(workflow, GraphWorkflow):
        check_graph(workflow.graph_class, where)
        return
    if issubclass(workflow, LoopWorkflow):
        check_agent_loop(workflow, where)
        workflow.check_config(config)
        return
    require_method(workflow, "execute", Workflow, ("workflow_task", "model_tuner"), where)
    require_no_arguments(workflow, where)
    workflow.check_config(config)


def _check_files(config: AjetConfig) -> None:
    template = config.ajet.model.chat_template
    if template is not None and not template_file(template).is_file():
        raise ConfigError(
            f"ajet.model.chat_template: {template}: no such file (the current folder is "
            f"{Path.cwd()}); give a jinja file",
            code=Code.TEMPLATE_NOT_FOUND,
        )
    resume = config.ajet.trainer_common.resume
    # Where the last start is recorded, another model is a change (core/run/start.py).
    is_recorded = is_file(config.run_folder / "config.yaml")
    if resume == "auto" and (config.ajet.trainer_common.accept_changes or not is_recorded):
        for newest in sorted((config.run_folder / "checkpoints").glob("step_*"))[-1:]:
            _check_model(config, newest)
    if resume in ("auto", "disable"):
        return
    where = f"ajet.trainer_common.resume: {resume}"
    if not Path(resume).is_dir():
        raise ConfigError(
            f"{where}: no such folder; give auto, disable or a checkpoint's folder "
            "(checkpoints/step_… in a run folder)",
            code=Code.CHECKPOINT_NOT_FOUND,
        )
    if not (Path(resume) / "manifest.json").is_file():
        raise ConfigError(
            f"{where}: no checkpoint is in this folder (it has no manifest.json)",
            code=Code.CHECKPOINT_NOT_FOUND,
        )
    _check_model(config, Path(resume))


def _check_model(config: AjetConfig, checkpoint: Path) -> None:
    """Raises ConfigError where a checkpoint is of a model of other sizes, as far as both state
    theirs. Whether each weight fits is checked when they are loaded."""
    try:
        model = sizes(find_config(config.ajet.model.path or "", download=False))
        saved = sizes(checkpoint / "config.json")
    except ModelError:
        return
    for name in sorted(model.keys() & saved.keys()):
        if model[name] != saved[name]:
            raise ConfigError(
                f"checkpoint {checkpoint} is of another model: its {name} is {saved[name]}, "
                f"that of ajet.model.path ({config.ajet.model.path}) is {model[name]}; give "
                "the model of the run that wrote it, or another experiment_name",
                code=Code.CHECKPOINT_DIFFERS,
            )


def _check_loggers(trainer: TrainerConfig) -> None:
    """Raises ConfigError where a logger, or a receiver of traces, needs a package that is not
    there."""
    for name in trainer.logger:
        if name in PACKAGES and not _is_installed(PACKAGES[name]):
            raise not_installed(name, PACKAGES[name])
    for name in trainer.traces:
        if not _is_installed(MODULES[name]):
            raise not_installed(name, MODULES[name], "traces", "choose [] for none")


def _is_installed(module: str) -> bool:
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:  # what it is in is missing
        return False
    return spec is not None and spec.origin is not None  # a plain folder of that name is no package
