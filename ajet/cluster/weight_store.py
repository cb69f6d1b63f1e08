"""Chooses how weights travel from the trainer to the engines, and makes the folder for them.

    memory        a folder in shared memory: on one machine
    checkpoint    a folder of the run, which all machines see
    nccl          a broadcast to engines on other devices (over gloo without a GPU); servers begin
                  with a folder

Backbone verl uses `memory` if all its processes and the driver are on one machine, else
`checkpoint`; backbone trinity uses `trinity.synchronizer.sync_method`. An SGLang server, and an
engine on the trainer's own devices, cannot take a broadcast: it gets files, and a warning says so.

Each run holds a lock on its folder, which the operating system releases when the process ends. A
run that begins removes folders in shared memory whose lock is free: their run was killed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from hashlib import sha256
from pathlib import Path
from typing import IO

from loguru import logger

from ajet.cluster.placement import Placement
from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError
from ajet.core.weight_sync.folder import shared_memory_root
from ajet.core.weight_sync.manifest import SyncMethod
from ajet.servers.serving import EngineName

PREFIX = "ajet-weights-"
OWNER = ".owner"
_locks: dict[Path, IO[str]] = {}


def sync_method(
    config: AjetConfig, placement: Placement, engine: EngineName
) -> tuple[SyncMethod, str | None]:
    """Returns how weights travel in this run, and a notice if that is not what was requested."""
    files, notice = _file_method(placement)
    if config.ajet.backbone != "trinity":
        return files, notice
    requested = config.trinity.synchronizer.sync_method
    key = f"trinity.synchronizer.sync_method={requested}"
    if requested == "memory" and len(placement.nodes) > 1:
        raise ConfigError(
            f"{key}: trainer and engines share no memory on {len(placement.nodes)} nodes; set "
            "checkpoint or nccl"
        )
    if config.trinity.mode == "train" and requested != "checkpoint":
        return (
            "checkpoint",
            f"{key}: two commands share files, weights travel as checkpoint",
        )
    if requested == "memory":
        return files, notice
    if requested != "nccl":
        return requested, None
    if engine == "sglang":
        return files, f"{key}: a {engine} server takes no broadcast, weights travel as {files}"
    if config.trinity.mode == "colocate":
        return files, f"{key}: trainer and engines share devices, weights travel as {files}"
    return requested, None


def start_in_memory(placement: Placement) -> bool:
    """True if the weights that servers begin with may lie in shared memory."""
    return _file_method(placement)[0] == "memory"


def _file_method(placement: Placement) -> tuple[SyncMethod, str | None]:
    """Returns "memory" if all processes share memory with the driver, which makes and removes the
    folder, else "checkpoint"; and a notice if one machine's processes do not share it."""
    if len(placement.nodes) > 1:
        return "checkpoint", None
    remote = [node.name for node in placement.nodes if node.is_remote]
    if not remote:
        return "memory", None
    return (
        "checkpoint",
        f"the run's processes are on {remote[0]}, ajet is on another node: they share no memory, "
        "weights travel as checkpoint",
    )


def make_weight_store(run_folder: Path, *, in_memory: bool, notice: str | None = None) -> Path:
    """Makes an empty folder for this run's weights, which is locked until this process ends; logs
    the notice of `sync_method`."""
    if notice is not None:
        logger.warning(notice)
    name = f"{PREFIX}{os.getuid()}-{sha256(str(run_folder.absolute()).encode()).hexdigest()[:12]}"
    root = shared_memory_root(name) if in_memory else run_folder / "weights"
    remove_abandoned(root.parent)
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True, exist_ok=True)
    _locks[root] = (root / OWNER).open("w")
    fcntl.flock(_locks[root], fcntl.LOCK_EX)
    return root


def remove_weight_store(root: Path) -> None:
    """Removes the folder and releases its lock."""
    shutil.rmtree(root, ignore_errors=True)
    if (owner := _locks.pop(root, None)) is not None:
        owner.close()


def remove_abandoned(folder: Path) -> list[Path]:
    """Removes the weight folders there whose run has ended; returns their paths."""
    removed = []
    for root in sorted(folder.glob(f"{PREFIX}{os.getuid()}-*")):
        if root not in _locks and _is_abandoned(root):
            shutil.rmtree(root, ignore_errors=True)
            removed.append(root)
    return removed


def _is_abandoned(root: Path) -> bool:
    try:
        with (root / OWNER).open() as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:  # another run is just making it
        return False
    return True
