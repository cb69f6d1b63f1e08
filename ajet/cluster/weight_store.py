"""Chooses how weights travel from the trainer to the engines, and makes the folder for them."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Literal

from loguru import logger

from ajet.cluster.placement import Placement
from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.process.file_lock import take
from ajet.core.weight_sync.folder import shared_memory_root
from ajet.core.weight_sync.manifest import SyncMethod

PREFIX = "ajet-weights-"
WAYS: dict[SyncMethod, str] = {
    "memory": "through files in shared memory",
    "checkpoint": "through files of the run folder",
    "nccl": "by broadcast",
    "ipc": "by handles of memory on the same device",
}
"""The methods in the words of the log."""
OWNER = ".owner"
_locks: dict[Path, IO[str]] = {}


def sync_method(config: AjetConfig, placement: Placement) -> tuple[SyncMethod, str | None]:
    """Returns how weights travel in this run, and a notice if the config requests another way.

        memory        a folder in shared memory, on one machine
        checkpoint    a folder of the run, which all machines see
        nccl          a broadcast to engines on other devices or, over gloo, to CPU processes
        ipc           handles of memory, to engines on the trainer ranks' GPUs

    By default engines on the trainer's GPUs get handles; those on other devices, or on the CPUs of
    several machines, a broadcast; all others files. The config can force a way; an impossible one
    is refused or replaced with a warning. With every way servers start from a folder.
    """
    files, notice = _file_method(placement)
    if config.ajet.backbone != "trinity":
        return _method_of_turns(config.verl.rollout.sync_method, placement)
    requested = config.trinity.synchronizer.sync_method
    key = f"trinity.synchronizer.sync_method={requested}"
    if requested == "memory" and len(placement.nodes) > 1:
        raise ConfigError(
            f"{key}: trainer and engines share no memory on {len(placement.nodes)} nodes; set "
            "checkpoint or nccl",
            code=Code.WEIGHTS_WAY,
        )
    if config.trinity.mode == "train" and requested != "checkpoint":
        return "checkpoint", f"{key}: two commands share files, weights travel as checkpoint"
    if requested == "memory":
        return files, notice
    takes_turns = config.trinity.mode == "colocate"
    if requested == "ipc":
        problem = _handover_problem(placement) if takes_turns else "trinity.mode is not colocate"
        if problem:
            raise ConfigError(f"{key}: {problem}; set nccl", code=Code.WEIGHTS_WAY)
    if requested == "nccl" and takes_turns:
        method = _best_of_turns(placement)
        if method == requested:
            return method, None
        return method, f"{key}: trainer and engines share devices, weights travel as {method}"
    return requested, None


def _method_of_turns(
    requested: SyncMethod | Literal["auto"], placement: Placement
) -> tuple[SyncMethod, str | None]:
    """`sync_method` for backbone verl, where trainer and engines take turns."""
    key = f"verl.rollout.sync_method={requested}"
    files, notice = _file_method(placement)
    if requested == "auto":
        method = _best_of_turns(placement)
        return method, notice if method == files else None
    if requested == "ipc" and (problem := _handover_problem(placement)):
        raise ConfigError(f"{key}: {problem}; set auto", code=Code.WEIGHTS_WAY)
    if requested == "memory" and files != "memory":
        raise ConfigError(
            f"{key}: trainer, engines and ajet share no memory; set auto", code=Code.WEIGHTS_WAY
        )
    return requested, None


def _best_of_turns(placement: Placement) -> SyncMethod:
    """Returns the best method for trainer and engines that take turns: ipc on GPUs if possible."""
    if placement.on_gpus and not _handover_problem(placement):
        return "ipc"
    # NCCL refuses two processes on one GPU; gloo, on CPUs, has no such limit.
    is_on_cpus = len(placement.nodes) > 1 and not placement.on_gpus
    return "nccl" if is_on_cpus else _file_method(placement)[0]


def ranks_beside(placement: Placement) -> dict[str, tuple[int, ...]]:
    """Returns, by the engine's name, the number of the trainer rank on each GPU of the engine, in
    their order; for an engine without a GPU, one rank on its machine. Engines with a GPU that has
    no rank are left out."""
    rank_of_device: dict[tuple[int, tuple[int, ...]], int] = {}
    for rank, process in enumerate(placement.trainer):
        rank_of_device.setdefault((process.bundle, process.gpus), rank)
    ranks_by_engine: dict[str, tuple[int, ...]] = {}
    for number, engine in enumerate(placement.engines):
        gpus = [(gpu,) for gpu in engine.gpus] or [()]
        ranks = tuple(rank_of_device.get((engine.bundle, process), -1) for process in gpus)
        if min(ranks) >= 0:
            ranks_by_engine[f"engine {number}"] = ranks
    return ranks_by_engine


def _handover_problem(placement: Placement) -> str:
    """Says why trainer ranks cannot hand weights over to engines; "" if they can."""
    if len(ranks_beside(placement)) < len(placement.engines):
        return "some engine has a GPU without a trainer rank"
    return ""


def shares_run_folder(placement: Placement) -> bool:
    """Returns whether all trainer ranks see the run folder; then each writes its shards."""
    return all(node.sees_run_folder for node in placement.nodes_of(placement.trainer))


def start_in_memory(placement: Placement) -> bool:
    """Returns whether the weights that servers start from may be in shared memory."""
    return _file_method(placement)[0] == "memory"


def _file_method(placement: Placement) -> tuple[SyncMethod, str | None]:
    """Returns "memory" if all processes share memory with the driver, which makes and removes the
    folder, else "checkpoint"; with a notice if the run's only machine is not the driver's."""
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
    """Makes an empty folder for this run's weights and logs the notice of `sync_method`. The folder
    is locked until this process ends, however it ends."""
    if notice is not None:
        logger.warning(notice)
    if in_memory:
        # mkdtemp: readable by this user only, with a name that nobody can have prepared.
        remove_abandoned(shared_memory_root())
        root = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getuid()}-", dir=shared_memory_root()))
    else:
        root = run_folder / "weights"
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True, exist_ok=True)
    _locks[root] = (root / OWNER).open("w")
    take(_locks[root])
    return root


def remove_weight_store(root: Path) -> None:
    """Removes the folder and releases its lock."""
    shutil.rmtree(root, ignore_errors=True)
    if (owner := _locks.pop(root, None)) is not None:
        owner.close()


def remove_abandoned(folder: Path) -> list[Path]:
    """Removes weight folders with a free lock, whose run was killed; returns their paths."""
    removed = []
    for root in sorted(folder.glob(f"{PREFIX}{os.getuid()}-*")):
        is_ours = root.lstat().st_uid == os.getuid() and not root.is_symlink()
        if is_ours and root not in _locks and _is_abandoned(root):
            shutil.rmtree(root, ignore_errors=True)
            removed.append(root)
    return removed


def _is_abandoned(root: Path) -> bool:
    try:
        with (root / OWNER).open() as owner:
            take(owner, wait=False)
    except BlockingIOError:
        return False
    except FileNotFoundError:  # another run is just making it
        return False
    return True
