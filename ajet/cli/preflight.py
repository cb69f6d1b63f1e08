"""Finds errors that would stop a run later, before data is read or a model loaded.

`ajet train` and `ajet check` check everything here, `ajet debug` and `ajet eval` only the classes.
"""

import inspect
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ajet.cli.findings import run_findings
from ajet.cli.notices import stop_at_errors
from ajet.cluster.session import require_ray
from ajet.core.buffer.network_file_system import network_file_system
from ajet.core.config import AjetConfig
from ajet.core.config.precision import describe_precision
from ajet.core.errors import ConfigError, ModelError
from ajet.core.errors.codes import Code
from ajet.core.judge import judge_class, judge_spec
from ajet.core.judge.judge import BaseJudge, GroupJudge
from ajet.core.model.tokenizer import template_file
from ajet.core.record.run_folder import RunFolder, is_file
from ajet.core.record.trace_follower import MODULES
from ajet.core.record.trackers import PACKAGES, not_installed
from ajet.core.task.task import Task
from ajet.core.update.settings import CriticSettings, UpdateSettings
from ajet.core.user_code.importing import (
    ARROW,
    load_attribute,
    require_arguments,
    require_method,
    require_no_arguments,
)
from ajet.core.workflow.agent_loop import LoopWorkflow, check_agent_loop
from ajet.core.workflow.graph import GraphWorkflow, check_graph, read_agent_cfg
from ajet.core.workflow.registry import WorkflowFactory
from ajet.core.workflow.workflow import Workflow
from ajet.plan.model_config import find_config, sizes
from ajet.servers.serving import check_server

WORKFLOW_KEY, JUDGE_KEY = "ajet.rollout.user_workflow", "ajet.task_judge.judge_protocol"


def check_run(config: AjetConfig) -> list[str]:
    """Raises ConfigError for the first problem that would stop training before its first step, a
    finding included. Returns warnings."""
    workflows = check_parts(config)
    # Without `user_workflow` the rows name their agents, and only `ajet check` reads rows.
    is_named = config.ajet.rollout.user_workflow is not None
    findings = run_findings(config, [workflows.default] if is_named else [])
    stop_at_errors(findings)
    return [finding.text for finding in findings if finding.level == "warning"]


def check_parts(config: AjetConfig) -> WorkflowFactory:
    """Raises ConfigError for the first part of the run that cannot be made; returns its
    workflows."""
    if config.runs_on_ray:
        require_ray()
        _check_server(config)
    workflows = check_classes(config)
    UpdateSettings.from_config(config)
    if config.ajet.trainer_common.algorithm.estimator.needs_critic:
        CriticSettings.from_config(config)
    _check_files(config)
    _check_buffer(config)
    for name in config.ajet.trainer_common.logger:
        if name in PACKAGES and not _is_installed(PACKAGES[name]):
            raise not_installed(name, PACKAGES[name])
    for name in config.ajet.trainer_common.traces:
        if not _is_installed(MODULES[name]):
            raise not_installed(name, MODULES[name], "traces", "choose [] for none")
    return workflows


def _check_buffer(config: AjetConfig) -> None:
    """Raises ConfigError if explorer and trainer, as two commands, would share an SQLite database
    on a network file system: neither knows whether the other is on the same machine."""
    if config.ajet.backbone != "trinity" or config.trinity.mode not in ("train", "explore"):
        return
    url = config.trinity.buffer.url or f"sqlite:///{RunFolder(config.run_folder).buffer_db}"
    if not url.startswith("sqlite"):
        return
    database = Path(url.partition(":///")[2])
    if (file_system := network_file_system(database)) is not None:
        raise ConfigError(
            f"trinity.mode={config.trinity.mode}: {database} would be on a network file system "
            f"({file_system}), where SQLite is not safe between two commands: set "
            "trinity.buffer.url to a PostgreSQL database (postgresql+psycopg://…), or, for two "
            "commands on one machine, choose a disk of that machine with --exp-dir",
            code=Code.BUFFER_UNUSABLE,
        )


def _check_server(config: AjetConfig) -> None:
    """Raises ConfigError if the run's inference server is not installed on this machine. Engines on
    other machines (several nodes, a joined Ray, GPUs that this machine lacks) check it there."""
    if config.ajet.trainer_common.nnodes > 1 or os.environ.get("RAY_ADDRESS", "").strip():
        return
    from ajet.cluster.machine import configured_placement, local_node

    placement = configured_placement(config)
    if placement.engines and not (placement.on_gpus and local_node().gpus == 0):
        check_server(config, on_gpu=placement.on_gpus)


def cluster_notices(config: AjetConfig) -> list[str]:
    """Describes a run on Ray: its processes, number format, and what may not fit on its GPUs.
    Raises ConfigError if it cannot be placed on the config's nodes."""
    if not config.runs_on_ray:
        return []
    from ajet.cluster.machine import configured_placement
    from ajet.plan.gpu_plan import local_gpu, memory_problems
    from ajet.plan.update_time import GPUS

    placement, gpu = configured_placement(config), local_gpu() or GPUS["a100"]
    problems = memory_problems(config, placement, gpu) if placement.on_gpus else []
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


def check_classes(config: AjetConfig) -> WorkflowFactory:
    """Raises ConfigError unless the workflow, the judge and the user's functions load and can be
    called. Returns the workflows."""
    _check_folder_names([config.run_folder, *config.base_dirs])
    workflows, spec = WorkflowFactory.from_config(config), config.ajet.rollout.user_workflow
    _check_workflow(workflows.default, config, f"{WORKFLOW_KEY}: {spec!r}")
    spec = judge_spec(config.ajet.task_judge)
    judge = judge_class(spec, config.base_dirs)
    if judge is not None:
        key = f"{JUDGE_KEY}: {spec!r}"
        if issubclass(judge, GroupJudge):
            arguments = ("workflow_tasks", "workflow_outputs")
            require_method(judge, "compute_group_rewards", GroupJudge, arguments, key)
        else:
            arguments = ("workflow_task", "workflow_output")
            require_method(judge, "compute_reward", BaseJudge, arguments, key)
    _check_own_algorithms(config)
    return workflows


def _check_folder_names(folders: Sequence[Path]) -> None:
    """Raises ConfigError for a folder whose name is not valid in the locale's encoding: libraries
    that write into it encode names as UTF-8."""
    for folder in folders:
        try:
            str(folder).encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"{str(folder)!a}: the locale's encoding {sys.getfilesystemencoding()} cannot "
                "express this folder's name; set LC_ALL=C.UTF-8, or use another folder",
                code=Code.FOLDER_NAME,
            ) from error


def _check_own_algorithms(config: AjetConfig) -> None:
    """Raises ConfigError unless the user's loss, estimator, reward shaping and sampler load, and
    the functions take the arguments that they will get."""
    algorithm, section = config.ajet.trainer_common.algorithm, "ajet.trainer_common.algorithm"
    specs = {
        f"{section}.policy_loss": (algorithm.policy_loss, ("tokens", "settings")),
        f"{section}.adv_estimator": (algorithm.adv_estimator, ("groups", "options")),
        f"{section}.reward_shaping": (algorithm.reward_shaping, ("groups",)),
        "ajet.data.sampler": (config.ajet.data.sampler, None),  # one of two forms
    }
    for key, (spec, arguments) in specs.items():
        if spec is None or ARROW not in spec:
            continue
        attribute = load_attribute(spec, base_dirs=config.base_dirs, location=key)
        if arguments is not None and inspect.isfunction(attribute):
            require_arguments(attribute, arguments, f"{key}: {spec!r}")


def check_agents(config: AjetConfig, workflows: WorkflowFactory, tasks: Sequence[Task]) -> None:
    """Raises ConfigError for a task whose `agent_name` is not the name of a workflow."""
    for workflow in workflows.classes_for(tasks):
        _check_workflow(workflow, config, "agent_name of a task")
    for path in dict.fromkeys(str(task.metadata.get("agent_cfg_path") or "") for task in tasks):
        read_agent_cfg(path, config.base_dirs)


def _check_workflow(workflow: type[Workflow], config: AjetConfig, key: str) -> None:
    """Raises ConfigError unless an episode can make the workflow and run it."""
    if issubclass(workflow, GraphWorkflow):
        check_graph(workflow.graph_class, key)
        return
    if issubclass(workflow, LoopWorkflow):
        check_agent_loop(workflow, key)
        workflow.check_config(config)
        return
    require_method(workflow, "execute", Workflow, ("workflow_task", "model_tuner"), key)
    require_no_arguments(workflow, key)
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
    # If the last start is recorded, core/run/start.py reports another model as a change.
    is_recorded = is_file(config.run_folder / "config.yaml")
    if resume == "auto" and (config.ajet.trainer_common.accept_changes or not is_recorded):
        for newest in sorted((config.run_folder / "checkpoints").glob("step_*"))[-1:]:
            _check_model(config.ajet.model.path or "", newest)
    if resume in ("auto", "disable"):
        return
    key = f"ajet.trainer_common.resume: {resume}"
    if not Path(resume).is_dir():
        raise ConfigError(
            f"{key}: no such folder; give auto, disable or a checkpoint's folder "
            "(checkpoints/step_… in a run folder)",
            code=Code.CHECKPOINT_NOT_FOUND,
        )
    if not (Path(resume) / "manifest.json").is_file():
        raise ConfigError(
            f"{key}: this folder holds no checkpoint (it has no manifest.json)",
            code=Code.CHECKPOINT_NOT_FOUND,
        )
    _check_model(config.ajet.model.path or "", Path(resume))


def _check_model(path: str, checkpoint: Path) -> None:
    """Raises ConfigError if the sizes in the config.json of model and checkpoint differ. Loading
    checks each weight."""
    try:
        model = sizes(find_config(path, download=False))
        saved = sizes(checkpoint / "config.json")
    except ModelError:
        return
    for name in sorted(model.keys() & saved.keys()):
        if model[name] != saved[name]:
            raise ConfigError(
                f"checkpoint {checkpoint} is of another model: its {name} is {saved[name]}, "
                f"that of ajet.model.path ({path}) is {model[name]}; give "
                "the model of the run that wrote it, or another experiment_name",
                code=Code.CHECKPOINT_DIFFERS,
            )


def _is_installed(module: str) -> bool:
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:  # its parent package is missing
        return False
    return spec is not None and spec.origin is not None  # None: a plain folder with that name
