"""How weights travel from the trainer to the engines, and where the trainer leaves them.

    memory        a folder in shared memory: on one machine
    checkpoint    a folder of the run, which all machines see
    nccl          nowhere: a broadcast to engines in processes of ours (gloo where there is no GPU)

Backbone verl has `memory` on one machine, if it is the driver's, else `checkpoint`; backbone
trinity is told by `trinity.synchronizer.sync_method`. A server, and an engine on the trainer's own
devices, takes no broadcast: it gets files, and a line says so.

What a run that was killed left in shared memory is removed when the next one begins: each run holds
a lock on its own, and a lock goes with its process.
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
from ajet.servers.serving import engine_name

PREFIX = "ajet-weights-"
OWNER = ".owner"
_held: dict[Path, IO[str]] = {}


def sync_method(config: AjetConfig, placement: Placement) -> tuple[SyncMethod, str | None]:
    """How weights travel in this run, and why not as asked, where that is so."""
    files, elsewhere = _files(placement)
    if config.ajet.backbone != "trinity":
        return files, elsewhere
    asked = config.trinity.synchronizer.sync_method
    key = f"trinity.synchronizer.sync_method={asked}"
    if asked == "memory" and len(placement.nodes) > 1:
        raise ConfigError(
            f"{key}: trainer and engines share no memory on {len(placement.nodes)} nodes; set "
            "checkpoint or nccl"
        )
    if config.trinity.mode == "train" and asked != "checkpoint":
        return (
            "checkpoint",
            f"{key}: two commands share files, weights travel as checkpoint",
        )
    if asked == "memory":
        return files, elsewhere
    if asked != "nccl":
        return asked, None
    engine = engine_name(config, on_gpu=placement.on_gpus)
    if engine != "in_process":
        return files, f"{key}: a {engine} server takes no broadcast, weights travel as {files}"
    if config.trinity.mode == "colocate":
        return files, f"{key}: trainer and engines share devices, weights travel as {files}"
    return asked, None


def _files(placement: Placement) -> tuple[SyncMethod, str | None]:
    """Shared memory where the driver, which makes and removes the folder, shares it too; else why
    not, where one would think so."""
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
    """An empty folder of this run's own, held until this process ends; `notice` says why there."""
    if notice is not None:
        logger.warning(notice)
    name = f"{PREFIX}{os.getuid()}-{sha256(str(run_folder.absolute()).encode()).hexdigest()[:12]}"
    root = shared_memory_root(name) if in_memory else run_folder / "weights"
    remove_abandoned(root.parent)
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True, exist_ok=True)
    _held[root] = (root / OWNER).open("w")
    fcntl.flock(_held[root], fcntl.LOCK_EX)
    return root


def remove_weight_store(root: Path) -> None:
    """Nobody needs the weights there any more."""
    shutil.rmtree(root, ignore_errors=True)
    if (owner := _held.pop(root, None)) is not None:
        owner.close()


def remove_abandoned(folder: Path) -> list[Path]:
    """Weights there whose run is gone; says which they were."""
    removed = []
    for root in sorted(folder.glob(f"{PREFIX}{os.getuid()}-*")):
        if root not in _held and _is_abandoned(root):
            shutil.rmtree(root, ignore_errors=True)
            removed.append(root)
    return removed


def _is_abandoned(root: Path) -> bool:
    try:
        with (root / OWNER).open() as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:  # it is being made just now
        return False
    return True
