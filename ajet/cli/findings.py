"""Finds what a config asks for and this machine, or the run, cannot give. Loads no model.

    model      does the path lead to weights, a tokenizer and a chat template?
    device     is the one that is named on this machine?
    precision  is the number format slow on this processor?
    engine     which one samples on backbone debug, as far as that can be told without torch?
    reward     is there a judge, or does the workflow's source give a reward?
    data       are there as many tasks as a step takes? is one both trained on and held out?
    clipping   do the bounds fit the loss?
    machine    packages, open files, memory, /dev/shm, processes and disk against what the numbers
               need

Each finding is one line: ok, warning or error, with what to do. `ajet check` shows all of them;
`ajet train` shows the warnings of all but engine, data and machine, and stops at their errors;
`ajet plan` stops at those of device and engine. The needs are estimates from the config and the model's sizes. Not
covered: what a workflow itself opens, and the memory of GPUs (`ajet plan`).
"""

import ast
import inspect
import json
import os
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from ajet.agents.environment_agent import EnvironmentAgent
from ajet.backbones import runs_on_ray
from ajet.cli.clip_bounds import bounds_that_do_not_fit
from ajet.cluster.gguf_header import GgufHeader
from ajet.cluster.gpus import local_gpus, missing_device
from ajet.cluster.machine import machine_memory, number_in
from ajet.cluster.memory_estimate import GIB, checkpoint_bytes
from ajet.cluster.model_shape import EMBEDDED, ModelShape, model_shape
from ajet.core.config import AjetConfig
from ajet.core.config.precision import (
    BYTES,
    describe_precision,
    dtype_on,
    is_slow_here,
    state_dtype,
)
from ajet.core.descriptors import descriptor_limit, descriptors_needed
from ajet.core.error_codes import Code
from ajet.core.error_text import extra_advice
from ajet.core.errors import ConfigError, ModelError
from ajet.core.judge import judge_spec
from ajet.core.run.batch_plan import BatchPlan
from ajet.core.run.overlap import overlap_line
from ajet.core.task.task import Task
from ajet.core.workflow.workflow import Workflow
from ajet.servers.serving import engine_of_one_process

Level = Literal["ok", "warning", "error"]
API_MODEL = re.compile(
    r"(openai/|anthropic/|google/)?"
    r"(gpt-[345]|chatgpt|o[134](-|$)|claude|gemini|deepseek-(chat|reasoner)$|"
    r"qwen-(max|plus|turbo|long)|grok-|mistral-(large|medium|small)-latest)"
)
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
WEIGHTS = ("*.safetensors", "*.bin")
NO_TOKENIZER = "no tokenizer (tokenizer.json)"
PROCESSES_PER_PROGRAM = 2
"""A program in the sandbox and what it starts."""
MAX_PROGRAMS = 64
"""Programs that the sandbox runs at a time (SandboxPool's default)."""
BASE_PROCESSES = 64


@dataclass(frozen=True)
class Finding:
    """Holds one line about the config: what is asked for, and what to do if that cannot be. An
    error has its kind."""

    level: Level
    text: str
    code: Code | None = None

    def __str__(self) -> str:
        return f"{self.level}: {self.text}{f' [{self.code}]' if self.code else ''}"


def stop_at_errors(findings: Iterable[Finding]) -> None:
    """Raises ConfigError for the first finding that is an error."""
    for finding in findings:
        if finding.level == "error":
            raise ConfigError(finding.text, code=finding.code)


def run_findings(config: AjetConfig, workflows: Iterable[type[Workflow]]) -> list[Finding]:
    """Returns what can be told of the model, its device and precision, the reward and the clip
    bounds."""
    return [
        *_model_findings(config),
        *device_findings(config),
        *(_reward_finding(config, workflow) for workflow in workflows),
        *_clip_findings(config),
    ]


def data_findings(
    plan: BatchPlan, training: Sequence[Task], held_out: Sequence[Task]
) -> Iterator[Finding]:
    """Yields warnings of what a run may do: a step that needs more tasks than there are, and tasks
    that are both trained on and measured."""
    wanted, there = plan.tasks_per_step, plan.num_tasks
    if wanted > there:
        yield Finding(
            "warning",
            f"data: a step takes {wanted:,} tasks (ajet.data.train_batch_size), and there are "
            f"{there:,}: it plays the same ones again; lower it, or give more tasks",
        )
    if (line := overlap_line(training, held_out)) is not None:
        yield Finding("warning", line)


def machine_findings(config: AjetConfig, plan: BatchPlan) -> list[Finding]:
    """Returns what this machine has for the numbers of the config. Runs on Ray are planned by
    `ajet plan`; of them only open files, processes, disk and /dev/shm are compared."""
    episodes = min(config.ajet.rollout.max_env_worker, plan.max_episodes_per_step)
    shape = _shape(config)
    found = [*_package_findings(), _files_finding(episodes), _processes_finding(episodes)]
    if shape is None:
        found.append(
            Finding("ok", "memory and disk: cannot be told, the model's sizes are not known here")
        )
        return found
    found.append(_disk_finding(config, shape))
    if runs_on_ray(config):
        found += _shm_findings(config, shape)
    elif not _has_gpu(config):
        found.append(_memory_finding(config, shape))
    return found


def _has_gpu(config: AjetConfig) -> bool:
    return Path("/dev/nvidiactl").exists() and config.ajet.model.device != "cpu"


def _package_findings() -> list[Finding]:
    """Returns a warning where the packages that train are not installed."""
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if not missing:
        return []
    named = " and ".join(missing)
    advice = extra_advice(missing[0])
    return [Finding("warning", f"packages: a run needs {named}, which this lacks: {advice}")]


# --- the model -----------------------------------------------------------------------------------


def _model_findings(config: AjetConfig) -> Iterator[Finding]:
    path = config.ajet.model.path or ""
    where = f"ajet.model.path: {path}"
    if path.startswith("embedded:"):
        yield from _embedded_findings(path, config)
        return
    local = Path(path).expanduser()
    if local.is_dir():
        yield from _folder_findings(local, config)
    elif local.is_file():
        yield _gguf_finding(local, where)
    elif API_MODEL.match(path):
        yield Finding(
            "error",
            f"{where}: this is the name of a model behind an API, and ajet trains open weights: "
            "give a folder or a name on the Hub, such as Qwen/Qwen2.5-0.5B-Instruct",
            Code.MODEL_NOT_FOUND,
        )
    elif path.startswith((".", "/", "~")) or path.count("/") > 1 or path.endswith(".gguf"):
        yield Finding(
            "error",
            f"{where}: no such file or folder ({local.absolute()})",
            Code.MODEL_NOT_FOUND,
        )
    else:
        yield _hub_finding(path, where, config.ajet.model.chat_template is not None)


def _embedded_findings(path: str, config: AjetConfig) -> Iterator[Finding]:
    name = path.removeprefix("embedded:")
    known = sorted(file.parent.name for file in EMBEDDED.glob("*/config.json"))
    if name in known:
        yield from _folder_findings(EMBEDDED / name, config)
        return
    close = get_close_matches(name, known, 1)
    names = ", ".join(f"embedded:{each}" for each in known)
    hint = f"did you mean 'embedded:{close[0]}'?" if close else f"there are {names}"
    problem = f"ajet.model.path: {path}: no such model in this package; {hint}"
    yield Finding("error", problem, Code.MODEL_NOT_FOUND)


def _folder_findings(folder: Path, config: AjetConfig) -> Iterator[Finding]:
    where = f"ajet.model.path: {folder}"
    missing = []
    if not (folder / "config.json").is_file():
        missing.append("no config.json")
    if not any(any(folder.glob(pattern)) for pattern in WEIGHTS):
        missing.append("no weights (*.safetensors)")
    if not any((folder / name).is_file() for name in TOKENIZERS):
        missing.append(NO_TOKENIZER)
    if missing:
        yield Finding(
            "error",
            f"{where}: {', '.join(missing)}; give a folder as transformers saves",
            Code.NO_TOKENIZER if missing == [NO_TOKENIZER] else Code.MODEL_NOT_FOUND,
        )
    elif config.ajet.model.chat_template is None and not _has_template(folder):
        yield Finding(
            "error",
            f"{where}: its tokenizer has no chat template; give ajet.model.chat_template",
            Code.NO_CHAT_TEMPLATE,
        )
    else:
        yield Finding("ok", f"{where}: weights, tokenizer and chat template are there")


def _gguf_finding(file: Path, where: str) -> Finding:
    if file.suffix != ".gguf":
        problem = f"{where}: a file, but not a .gguf: give the folder around it"
        return Finding("error", problem, Code.MODEL_NOT_FOUND)
    try:
        GgufHeader.of(file)
    except ModelError as error:
        return Finding("error", f"{where}: {error}", Code.MODEL_NOT_LOADED)
    if find_spec("gguf") is None:
        advice = f"reading GGUF needs a package: {extra_advice('gguf')}"
        return Finding("error", f"{where}: {advice}", Code.PACKAGE_MISSING)
    return Finding("ok", f"{where}: a GGUF file; its tokenizer and template are read with it")


def _has_template(folder: Path) -> bool:
    if any((folder / name).exists() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    try:
        content = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and bool(content.get("chat_template"))


def _hub_finding(path: str, where: str, has_own_template: bool) -> Finding:
    """Looks into the Hub's cache on this machine alone."""
    if find_spec("huggingface_hub") is None:
        return Finding(
            "warning",
            f"{where}: no folder here; taken for a name on the Hub, whose cache on this machine "
            f"cannot be read: {extra_advice('huggingface_hub')}",
        )
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(path, "config.json")
    except HFValidationError as error:
        reason = f"no folder, and no name on the Hub: {' '.join(str(error).split())}"
        if "$" in path:
            reason = "a variable of the environment is written as ${oc.env:NAME}"
        problem = f"{where}: {reason}"
        return Finding("error", problem, Code.MODEL_NOT_FOUND)
    if not isinstance(cached, str):
        return Finding(
            "warning",
            f"{where}: no folder here; taken for a name on the Hub, not in this machine's cache: "
            "it will be downloaded; the Hub was not asked for its tokenizer and template",
        )
    snapshot, missing = Path(cached).parent, []
    if not any((snapshot / name).is_file() for name in TOKENIZERS):
        missing.append("tokenizer")
    if not has_own_template and not _has_template(snapshot):
        missing.append("chat template")
    if missing:
        return Finding(
            "warning",
            f"{where}: a name on the Hub, in the cache of this machine without its "
            f"{' and '.join(missing)}: a start needs the network, or ajet.model.chat_template",
        )
    return Finding(
        "ok",
        f"{where}: a name on the Hub, in the cache of this machine with tokenizer and "
        "chat template",
    )


def _shape(config: AjetConfig) -> ModelShape | None:
    """Returns the sizes of the model; None where they are not at hand or not of a known family."""
    try:
        return model_shape(config.ajet.model.path or "")
    except ModelError:
        return None


# --- the device ----------------------------------------------------------------------------------


def device_findings(config: AjetConfig) -> Iterator[Finding]:
    """Yields whether the named device is here, and what is computed on it. A run on Ray computes on
    its nodes, which `ajet plan` and the run's start look at."""
    if runs_on_ray(config):
        return
    problem = missing_device(config.ajet.model.device)
    if problem is not None:
        yield Finding("error", f"ajet.model.device: {problem}; use auto or cpu", Code.DEVICE)
        return
    on_gpu = _has_gpu(config)
    level: Level = "warning" if is_slow_here(config, gpu=on_gpu) else "ok"
    yield Finding(level, describe_precision(config, gpu=on_gpu))


# --- the engine ----------------------------------------------------------------------------------


def engine_findings(config: AjetConfig) -> Iterator[Finding]:
    """Yields which engine samples on backbone debug; nothing where nothing samples, on a cluster,
    and where torch alone knows whether the run is on a GPU."""
    device, name = config.ajet.model.device, config.ajet.rollout.name
    if runs_on_ray(config) or not config.samples:
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
        why = "" if name != "auto" else ", which ajet.rollout.name=auto takes on a GPU"
        yield Finding(
            "ok",
            f"engine: a server of {engine} starts and samples{why} (set it to in_process for "
            "none); `ajet plan` counts the in-process engine",
        )


# --- the reward ----------------------------------------------------------------------------------


def _reward_finding(config: AjetConfig, workflow: type[Workflow]) -> Finding:
    judge = judge_spec(config.ajet.task_judge)
    if judge is not None:
        return Finding("ok", f"reward: judge {judge}")
    if not config.learns_from_rewards:
        return _unneeded_reward_finding(config, workflow)
    gives = gives_reward(workflow)
    if gives is None and issubclass(workflow, EnvironmentAgent):
        return Finding("ok", "reward: the environment gives it, with each step")
    if gives is None:
        return Finding(
            "ok", f"reward: cannot be told from the source of {workflow.__name__}, without a judge"
        )
    if gives:
        return Finding("ok", f"reward: {workflow.__name__} gives it")
    return Finding(
        "error",
        f"reward: nobody gives one: {workflow.__name__} returns a WorkflowOutput without reward= "
        "and ajet.task_judge.judge_protocol is null; set one of them",
        Code.REWARD_MISSING,
    )


def _unneeded_reward_finding(config: AjetConfig, workflow: type[Workflow]) -> Finding:
    text = "reward: none is needed to train (ajet.distillation.reward_weight is 0)"
    trainer = config.ajet.trainer_common
    if gives_reward(workflow) is False and (trainer.test_freq > 0 or trainer.val_before_train):
        return Finding(
            "warning",
            f"{text}, but to validate: with validation tasks, name a judge or set "
            "ajet.trainer_common.test_freq=0",
        )
    return Finding("ok", text)


def gives_reward(workflow: type[Workflow]) -> bool | None:
    """Returns whether the source of a workflow gives a reward; None where it cannot be told."""
    outputs = 0
    for kind in workflow.__mro__:
        if not issubclass(kind, Workflow) or kind is Workflow:
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
        except (OSError, TypeError, SyntaxError):
            return None
        for node in ast.walk(tree):
            if _mentions_reward(node):
                return True
            if isinstance(node, ast.Call) and _name_of(node.func) == "WorkflowOutput":
                if node.args or any(keyword.arg is None for keyword in node.keywords):
                    return None
                outputs += 1
    return False if outputs else None


def _mentions_reward(node: ast.AST) -> bool:
    """Returns whether a reward is given here: `reward=…`, `output.reward = …` or "reward"."""
    match node:
        case ast.keyword(arg="reward", value=ast.Constant(value=None)):
            return False
        case ast.keyword(arg="reward") | ast.Constant(value="reward"):
            return True
        case ast.Attribute(attr="reward", ctx=ast.Store()):
            return True
    return False


def _name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


# --- the clip bounds -----------------------------------------------------------------------------


def _clip_findings(config: AjetConfig) -> Iterator[Finding]:
    algorithm = config.ajet.trainer_common.algorithm
    for problem in bounds_that_do_not_fit(algorithm):
        where = f"ajet.trainer_common.algorithm: policy_loss={algorithm.policy_loss}"
        yield Finding("warning", f"{where} {problem}")


# --- the machine ---------------------------------------------------------------------------------


def _files_finding(episodes: int) -> Finding:
    needed = descriptors_needed(episodes)
    return _compared(
        f"open files: about {needed:,} for {episodes:,} episodes at a time",
        needed,
        descriptor_limit(),
        "raise the hard limit (ulimit -Hn) or lower rollout.max_env_worker",
        level="warning",
        is_count=True,
    )


def _processes_finding(episodes: int) -> Finding:
    programs = min(episodes, MAX_PROGRAMS)
    needed = BASE_PROCESSES + PROCESSES_PER_PROGRAM * programs
    limits = _limit_of_processes()
    pids = number_in(Path("/sys/fs/cgroup/pids.max"))
    limits += [pids] if pids is not None else []
    return _compared(
        f"processes: about {needed:,}, if {programs} episodes run a program in the sandbox",
        needed,
        min(limits) if limits else None,
        "raise ulimit -u or the container's pids limit, or lower rollout.max_env_worker",
        level="warning",
        is_count=True,
    )


def _limit_of_processes() -> list[int]:
    """Returns the limit of this user's processes, if there is one that holds for it."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return []
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return [soft] if soft != resource.RLIM_INFINITY and os.getuid() else []


def _disk_finding(config: AjetConfig, shape: ModelShape) -> Finding:
    trainer = config.ajet.trainer_common
    kept = trainer.max_checkpoints_to_keep
    one = checkpoint_bytes(shape, trainer.lora.total_rank)
    folder = config.run_folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return _compared(
        f"disk: about {_size(one * (kept + 1))} for {kept} checkpoints of {_size(one)} and one "
        "that is being written",
        one * (kept + 1),
        shutil.disk_usage(folder).free,
        f"free some of {folder}, lower trainer_common.max_checkpoints_to_keep or give another "
        "--exp-dir",
    )


def _memory_finding(config: AjetConfig, shape: ModelShape) -> Finding:
    trainer = config.ajet.trainer_common
    rank = trainer.lora.total_rank
    dtype = dtype_on(config, gpu=False)
    size, wide = BYTES[dtype], BYTES[state_dtype(dtype)]
    trained = shape.lora_parameters(rank) if rank else shape.parameters
    has_reference = not rank and (trainer.use_kl_loss or trainer.algorithm.use_kl_in_reward)
    masters = wide if size < wide else 0
    needed = size * shape.parameters * (2 if has_reference else 1)
    needed += (masters + 3 * wide) * trained  # a gradient and AdamW's two moments
    return _compared(
        f"memory: at least {_size(needed)} for weights, gradients, AdamW and the reference",
        needed,
        machine_memory(),
        "take a smaller model, model.dtype=bfloat16 or lora.rank",
    )


def _shm_findings(config: AjetConfig, shape: ModelShape) -> Iterator[Finding]:
    """Yields whether /dev/shm has room for what lies there; nothing where nothing does."""
    from ajet.cluster.capacity import shared_memory

    part = shared_memory(config, shape)
    needed = round(part.gib * GIB)
    if not needed:
        return
    yield _compared(
        f"/dev/shm: about {_size(needed)} for {part.note}",
        needed,
        shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0,
        "give the container more (docker run --shm-size)",
        level="warning",
    )


def _compared(
    what: str,
    needed: int,
    there: int | None,
    fix: str,
    *,
    level: Level = "error",
    is_count: bool = False,
) -> Finding:
    """Returns ok where there is enough; a finding of this level with its remedy where there is
    not. Amounts are bytes unless `is_count`."""
    if there is None:
        return Finding("ok", f"{what}; no limit is set")
    shown = f"{there:,}" if is_count else _size(there)
    if needed <= there:
        return Finding("ok", f"{what}; there are {shown}")
    code = Code.MACHINE_TOO_SMALL if level == "error" else None
    return Finding(level, f"{what}; there are {shown}: {fix}", code)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
