"""Compares what a config needs with what there is: packages, open files, processes, memory,
/dev/shm and disk of this machine (`ajet plan` looks at the memory of GPUs), and the servers that it
names.
"""

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from ajet.cli.notices import Finding, Level
from ajet.cluster.machine import configured_placement, machine_memory, number_in
from ajet.core.config import AjetConfig
from ajet.core.config.nested import flatten
from ajet.core.config.support import unread_keys
from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.net.address import LOOPBACK_NAMES
from ajet.core.process.descriptors import descriptor_limit, descriptors_needed
from ajet.core.run.batch_plan import BatchPlan
from ajet.core.text.error_text import extra_advice
from ajet.plan.gpu_plan import ClusterPlan, configured_shape
from ajet.plan.memory import GIB, checkpoint_bytes, has_reference, number_bytes
from ajet.plan.model_config import find_config, stored_parameters
from ajet.plan.model_shape import ModelShape
from ajet.plan.update_time import GPUS, EpisodeSize

PROCESSES_PER_PROGRAM = 2
"""A program in the sandbox and a process that it starts."""
MAX_PROGRAMS = 64
"""How many programs the sandbox runs at a time (SandboxPool's default)."""
BASE_PROCESSES = 64
CONNECT_S = 3.0
SECTIONS = {"task_judge", "environment", "task_reader", "distillation"}
JUDGE_ADDRESS = "ajet.task_judge.client.base_url"
PORTS = {"http": 80, "https": 443}


def machine_findings(config: AjetConfig, plan: BatchPlan) -> list[Finding]:
    """Returns the findings. For a run on Ray, whose memory `ajet plan` looks at, they are only
    about open files, processes, disk and /dev/shm."""
    episodes = min(config.ajet.rollout.max_env_worker, plan.max_episodes_per_step)
    findings = []
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        packages, advice = " and ".join(missing), extra_advice(missing[0])
        text = f"packages: a run needs {packages}, not installed here: {advice}"
        findings.append(Finding("warning", text))
    files = descriptors_needed(episodes)
    enough_files = _compared(
        f"open files: about {files:,} for {episodes:,} episodes at a time",
        files,
        descriptor_limit(),
        "raise the hard limit (ulimit -Hn) or lower rollout.max_env_worker",
        level="warning",
        is_count=True,
    )
    findings += [enough_files, _processes_finding(episodes)]
    try:
        shape, parameters, trained = _sizes(config)
    except ModelError:  # config.json is not here, or the packages that read it
        text = "memory and disk: not compared, the model's sizes are not known here"
        return [*findings, Finding("ok", text)]
    findings.append(_disk_finding(config, trained))
    if shape is not None:
        findings += _shm_findings(config, shape)
    elif not has_gpu(config.ajet.model.device):
        findings.append(_memory_finding(config, parameters, trained))
    return findings


def _sizes(config: AjetConfig) -> tuple[ModelShape | None, int, int]:
    """Returns the model's shape (only for a run on Ray), its parameters, and how many are
    trained."""
    rank, path = config.ajet.trainer_common.lora.total_rank, config.ajet.model.path or ""
    on_ray = config.runs_on_ray
    if not on_ray and not rank and not path.endswith(".gguf"):
        # If all weights are trained, the headers of their files suffice, and torch takes seconds.
        stored = stored_parameters(find_config(path, download=False).parent)
        if stored is not None:
            return None, stored, stored
    shape = configured_shape(config)
    return shape if on_ray else None, shape.parameters, shape.trained_parameters(rank)


def has_gpu(device: str) -> bool:
    """Returns whether a run on `device` may compute on a GPU of this machine."""
    return Path("/dev/nvidiactl").exists() and device != "cpu"


def _processes_finding(episodes: int) -> Finding:
    programs = min(episodes, MAX_PROGRAMS)
    needed = BASE_PROCESSES + PROCESSES_PER_PROGRAM * programs
    limits = [] if (pids := number_in(Path("/sys/fs/cgroup/pids.max"))) is None else [pids]
    try:
        import resource

        soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        if soft != resource.RLIM_INFINITY and os.getuid():  # root is not limited
            limits.append(soft)
    except ModuleNotFoundError:  # Windows
        pass
    return _compared(
        f"processes: about {needed:,}, if {programs} episodes run a program in the sandbox",
        needed,
        min(limits) if limits else None,
        "raise ulimit -u or the container's pids limit, or lower rollout.max_env_worker",
        level="warning",
        is_count=True,
    )


def _disk_finding(config: AjetConfig, trained: int) -> Finding:
    trainer = config.ajet.trainer_common
    kept = trainer.max_checkpoints_to_keep
    numbers = number_bytes(config, gpu=False)
    size = checkpoint_bytes(trained, *numbers, is_adapter=trainer.lora.total_rank > 0)
    folder = config.run_folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return _compared(
        f"disk: about {_size(size * (kept + 1))} for {kept} checkpoints of {_size(size)} and one "
        "that is being written",
        size * (kept + 1),
        shutil.disk_usage(folder).free,
        f"free space in {folder}, lower trainer_common.max_checkpoints_to_keep or give another "
        "--exp-dir",
    )


def _memory_finding(config: AjetConfig, parameters: int, trained: int) -> Finding:
    rank = config.ajet.trainer_common.lora.total_rank
    size, wide = number_bytes(config, gpu=False)
    masters = wide if size < wide else 0  # a wider copy of each trained weight
    needed = size * parameters * (2 if has_reference(config) and not rank else 1)
    # A gradient and AdamW's two moments.
    needed += (masters + 3 * wide) * trained
    return _compared(
        f"memory: at least {_size(needed)} for weights, gradients, AdamW and the reference",
        needed,
        machine_memory(),
        "take a smaller model, model.dtype=bfloat16 or lora.rank",
    )


def _shm_findings(config: AjetConfig, shape: ModelShape) -> Iterator[Finding]:
    """Yields whether /dev/shm has room for the run's files there, if there are any."""
    # It depends neither on the GPU nor on the episodes.
    placement, size = configured_placement(config), EpisodeSize.of(config)
    part = ClusterPlan(config, placement, shape, GPUS["a100"], size).shared_memory
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
    need: str,
    needed: int,
    there: int | None,
    fix: str,
    *,
    level: Level = "error",
    is_count: bool = False,
) -> Finding:
    """Returns ok if there is enough, else a finding of this level with the fix. Amounts are bytes
    unless `is_count`."""
    if there is None:
        return Finding("ok", f"{need}; no limit is set")
    amount = f"{there:,}" if is_count else _size(there)
    if needed <= there:
        return Finding("ok", f"{need}; there are {amount}")
    code = Code.MACHINE_TOO_SMALL if level == "error" else None
    return Finding(level, f"{need}; there are {amount}: {fix}", code)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"


# --- the servers that a config names -------------------------------------------------------------


def address_findings(config: AjetConfig) -> Iterator[Finding]:
    """Yields a warning for each address at which nothing answers, of the judge, environments, data
    and teacher: one short connection each, without a request. Readers and environments that connect
    when they are created report failures themselves."""
    unread = unread_keys(config.ajet)
    agent = (config.ajet.rollout.user_workflow or "").removesuffix("_agent")
    agent_section = {agent: config.user_sections().get(agent, {})}  # nemo_gym.url of nemo_gym_agent
    sections = flatten(config.ajet.model_dump(include=SECTIONS), "ajet.") | flatten(agent_section)
    for key, value in sections.items():
        if any(f"{key}.".startswith(f"{section}.") for section in unread):
            continue
        if key == JUDGE_ADDRESS and value is None:
            value = os.environ.get("OPENAI_BASE_URL")
        if not isinstance(value, str) or not value.startswith(("http://", "https://")):
            continue
        if problem := _connection_problem(value):
            yield Finding(
                "warning",
                f"{key}: nothing answers at {value} ({problem}): start the server, or correct "
                "the address",
            )


def _connection_problem(address: str) -> str | None:
    """Returns why no connection to the address can be made, or None."""
    url = urlsplit(address)
    assert url.hostname is not None
    if url.scheme in getproxies() and url.hostname not in LOOPBACK_NAMES:
        return None  # another program connects
    problems = [f"no answer within {CONNECT_S:g} s"]

    def connect(place: tuple[str, int]) -> None:
        try:
            socket.create_connection(place, CONNECT_S).close()
        except OSError as error:
            problems.append(error.strerror or str(error))
        else:
            problems.append("")

    # In a thread, because looking up a name has no time limit.
    place = (url.hostname, url.port or PORTS[url.scheme])
    attempt = threading.Thread(target=connect, args=[place], daemon=True)
    attempt.start()
    attempt.join(CONNECT_S + 1)
    return problems[-1] or None
