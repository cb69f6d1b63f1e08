"""Finds what a config requests and this machine or the run cannot provide; loads no model. `ajet
check` shows all findings, also those of model_findings.py and machine_findings.py; `ajet train`
shows warnings of `run_findings` and stops at its errors; `ajet plan` stops at errors about device
and engine.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from ajet.agents.environment_agent import EnvironmentAgent
from ajet.cli.machine_findings import has_gpu
from ajet.cli.model_findings import model_findings
from ajet.cli.notices import Finding, Level
from ajet.cluster.machine import local_gpus, missing_device
from ajet.core.config import AjetConfig
from ajet.core.config.algorithm import AlgorithmConfig
from ajet.core.config.precision import describe_precision, is_slow_here
from ajet.core.config.redacted import redacted_value
from ajet.core.config.section import leaves
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.judge import is_registered, judge_spec
from ajet.core.judge.judge import BaseJudge
from ajet.core.run.batch_plan import BatchPlan
from ajet.core.run.run_tasks import overlap_line
from ajet.core.task.dataset import DatasetReader
from ajet.core.task.reader import BaseTaskReader
from ajet.core.task.task import Task
from ajet.core.workflow.workflow import Workflow
from ajet.judges.answer import ReferenceJudge, UnusableReference
from ajet.servers.serving import engine_of_one_process

READ_FOR_ALL = (
    "rollout.multi_turn.max_steps",
    "harness.sandbox",
    "harness.image",
    "harness.limits",
    "harness.shown_folders",
)
"""Settings that all agents obey: limits of every episode, and the sandbox, which judges use too."""
MAX_IDS = 5
"""The most tasks that a finding names for one reason."""
MAX_COLUMNS = 12
"""The most columns in one line."""


def run_findings(config: AjetConfig, workflows: Iterable[type[Workflow]]) -> list[Finding]:
    """Returns findings on the model, its device and precision, the reward and the clip bounds. A
    run that samples nothing has no rewards."""
    playing = list(workflows) if config.samples else []
    return [
        *model_findings(config),
        *device_findings(config),
        *(_reward_finding(config, workflow) for workflow in playing),
        *_unread_findings(config, playing),
        *_clip_findings(config.ajet.trainer_common.algorithm),
    ]


def data_findings(
    plan: BatchPlan, training: Sequence[Task], held_out: Sequence[Task]
) -> Iterator[Finding]:
    """Yields warnings: a step that needs more tasks than there are, tasks that are both trained on
    and measured, labels that are all the same, and the placeholders of `ajet init --from-agent`."""
    needed, available = plan.tasks_per_step, plan.num_tasks
    if needed > available:
        yield Finding(
            "warning",
            f"data: a step takes {needed:,} tasks (ajet.data.train_batch_size), and there are "
            f"{available:,}: it plays the same ones again; lower it, or give more tasks",
        )
    if (line := overlap_line(training, held_out)) is not None:
        yield Finding("warning", line)
    ajet = plan.config.ajet
    if ajet.kind == "preference" and ajet.preference.loss == "kto":
        labels = {task.metadata["label"] for task in training}
        if len(labels) == 1:
            kind, change = ("good", "more") if labels == {True} else ("bad", "less")
            yield Finding(
                "warning",
                f"data: all {available:,} replies are labelled {kind}, so kto has nothing to "
                f"compare and makes every reply {change} likely; give rows of both labels",
            )
    tasks = [*training, *held_out]
    if num := sum(task.metadata.get("placeholder") is True for task in tasks):
        yield Finding(
            "warning",
            f"data: {num:,} of {len(tasks):,} tasks are placeholders: put your own into "
            "tasks.jsonl and tasks_held_out.jsonl",
        )


def reference_findings(judge: BaseJudge | None, tasks: Sequence[Task]) -> Iterator[Finding]:
    """Yields a warning with the tasks whose reference answer no reply can equal, if the judge
    compares answers with references."""
    if not isinstance(judge, ReferenceJudge):
        return
    by_problem: dict[str, list[str]] = {}
    for task in tasks:
        try:
            judge.reference(task)
        except UnusableReference as error:
            by_problem.setdefault(error.problem, []).append(task.task_id)
    if not by_problem:
        return
    count = sum(map(len, by_problem.values()))
    listed = []
    for problem, ids in by_problem.items():
        more = f" and {len(ids) - MAX_IDS:,} more" if len(ids) > MAX_IDS else ""
        listed.append(f"{', '.join(ids[:MAX_IDS])}{more}: {problem}")
    yield Finding(
        "warning",
        f"data: {count:,} of {len(tasks):,} tasks have no reference answer that a reply could "
        f"equal, so {type(judge).__name__} fails their episodes ({'; '.join(listed)}); correct "
        "these rows or take them out",
    )


def column_findings(config: AjetConfig, reader: BaseTaskReader) -> Iterator[Finding]:
    """Yields a line with the columns of the rows that ajet does not read and no setting names."""
    unread = reader.unread_columns if isinstance(reader, DatasetReader) else set[str]()
    texts = " ".join(str(leaf.value) for leaf in leaves(config.ajet, "ajet"))
    columns = sorted(unread - set(re.findall(r"\w+", texts)))
    if columns:
        names = ", ".join(columns[:MAX_COLUMNS]) + (", …" if len(columns) > MAX_COLUMNS else "")
        readers = ""
        if config.samples:
            readers = "; your workflow or judge finds them in task.metadata"
        if "id" in columns:
            readers += "; a row's own id is its task_id"
        yield Finding("ok", f"data: no setting reads the columns {names}{readers}")


# --- the device ----------------------------------------------------------------------------------


def device_findings(config: AjetConfig) -> Iterator[Finding]:
    """Yields whether this machine has the device, and the number format there."""
    if config.runs_on_ray:  # computes on its nodes, which `ajet plan` and the run's start check
        return
    problem = missing_device(config.ajet.model.device)
    if problem is not None:
        yield Finding("error", f"ajet.model.device: {problem}; use auto or cpu", Code.DEVICE)
        return
    on_gpu = has_gpu(config.ajet.model.device)
    level: Level = "warning" if is_slow_here(config, gpu=on_gpu) else "ok"
    yield Finding(level, describe_precision(config, gpu=on_gpu))


# --- the engine ----------------------------------------------------------------------------------


def engine_findings(config: AjetConfig) -> Iterator[Finding]:
    """Yields which engine samples on backbone debug; nothing if nothing samples, on a cluster, or
    where only torch knows whether the run is on a GPU."""
    device, name = config.ajet.model.device, config.ajet.rollout.name
    if config.runs_on_ray or not config.samples:
        return
    on_gpu = device not in ("cpu", "mps") and missing_device("cuda") is None
    if on_gpu and device == "auto" and not local_gpus():
        return
    try:
        engine, notice = engine_of_one_process(config, on_gpu=on_gpu)
    except ConfigError as error:
        yield Finding("error", f"engine: {error}", error.code)
        return
    if notice is not None:
        yield Finding("warning", f"engine: {notice}")
    elif engine == "in_process":
        yield Finding("ok", "engine: the in-process engine samples")
    else:
        reason = "" if name != "auto" else ", which ajet.rollout.name=auto takes on a GPU"
        yield Finding(
            "ok",
            f"engine: a server of {engine} starts and samples{reason} (set it to in_process for "
            "none); `ajet plan` counts the in-process engine",
        )


# --- the reward ----------------------------------------------------------------------------------


def _reward_finding(config: AjetConfig, workflow: type[Workflow]) -> Finding:
    judge = judge_spec(config.ajet.task_judge)
    if judge is not None:
        threshold = config.ajet.task_judge.success_threshold
        success = (
            ""
            if is_registered(judge)
            else f"; a reward of {threshold:g} or more is a success, unless the judge returns "
            "(reward, is_success) (ajet.task_judge.success_threshold)"
        )
        return Finding("ok", f"reward: judge {judge}{success}")
    gives = gives_reward(workflow)
    if not config.learns_from_rewards:
        text = "reward: none is needed to train (ajet.distillation.reward_weight is 0)"
        trainer = config.ajet.trainer_common
        if gives is False and (trainer.test_freq > 0 or trainer.val_before_train):
            return Finding(
                "warning",
                f"{text}, but to validate: with validation tasks, name a judge or set "
                "ajet.trainer_common.test_freq=0",
            )
        return Finding("ok", text)
    if gives is None and issubclass(workflow, EnvironmentAgent):
        return Finding("ok", "reward: the environment gives it, with each step")
    if gives is None:
        return Finding(
            "ok", f"reward: no judge; the source of {workflow.__name__} does not show a reward"
        )
    if gives:
        return Finding("ok", f"reward: {workflow.__name__} gives it")
    return Finding(
        "error",
        f"reward: there is none: {workflow.__name__} returns a WorkflowOutput without reward= and "
        "ajet.task_judge.judge_protocol is null; set one of them",
        Code.REWARD_MISSING,
    )


def gives_reward(workflow: type[Workflow]) -> bool | None:
    """Returns whether the source of a workflow gives a reward; None if it does not show."""
    outputs = 0
    for base in workflow.__mro__:  # the workflow may inherit the method that gives it
        if not issubclass(base, Workflow) or base is Workflow:
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):
            return None
        for node in ast.walk(tree):
            match node:
                case ast.keyword(arg="reward", value=ast.Constant(value=None)):
                    pass
                case ast.keyword(arg="reward") | ast.Constant(value="reward"):
                    return True
                case ast.Attribute(attr="reward", ctx=ast.Store()):  # output.reward = …
                    return True
                case ast.Call(
                    func=ast.Name(id="WorkflowOutput") | ast.Attribute(attr="WorkflowOutput")
                ):
                    # Positional arguments or **arguments may contain a reward.
                    if node.args or any(keyword.arg is None for keyword in node.keywords):
                        return None
                    outputs += 1
    return False if outputs else None


# --- what the agents read ------------------------------------------------------------------------


def _unread_findings(config: AjetConfig, workflows: Sequence[type[Workflow]]) -> Iterator[Finding]:
    """Yields a warning for each setting of agents that no agent of the run reads; none if an agent
    is a user's class, of which one cannot tell."""
    ajet, read = config.ajet, set(READ_FOR_ALL)
    sections = {
        "rollout.multi_turn": (ajet.rollout.multi_turn, "tool_agent"),
        "rollout.compaction": (ajet.rollout.compaction, "tool_agent"),
        "harness": (ajet.harness, "harness:cmd"),
    }
    for workflow in workflows:
        # A class that overrides `execute` may read other keys than its base class.
        states = (vars(base) for base in workflow.__mro__)
        state = next(names for names in states if "reads" in names or "execute" in names)
        keys = state.get("reads")
        if keys is None:
            return
        read.update(keys)
    playing = " and ".join(workflow.name for workflow in workflows)
    verb = "do" if len(workflows) > 1 else "does"
    for name, (section, reader) in sections.items() if workflows else ():
        for leaf in leaves(section, name):
            if leaf.is_default or any(f"{leaf.path}.".startswith(f"{key}.") for key in read):
                continue
            yield Finding(
                "warning",
                f"ajet.{leaf.path}={redacted_value(leaf.path, leaf.value)}: {playing} {verb} not "
                f"read it; ajet.rollout.user_workflow={reader} does",
            )


# --- the clip bounds -----------------------------------------------------------------------------


def _clip_findings(algorithm: AlgorithmConfig) -> Iterator[Finding]:
    loss, prefix = algorithm.loss, "ajet.trainer_common.algorithm: policy_loss="
    problems = list(loss.warnings(algorithm)) if loss.warnings else []
    unread = [
        f"{key}={getattr(algorithm, key):g}"
        for key in ("clip_low", "clip_high", "dual_clip")
        if key in algorithm.model_fields_set and getattr(algorithm, key) is not None
    ]
    if unread and "clip_low" not in loss.reads:
        problems.append(f"with {', '.join(unread)}: it clips nothing, so they have no effect")
    for problem in problems:
        yield Finding("warning", f"{prefix}{algorithm.policy_loss} {problem}")
