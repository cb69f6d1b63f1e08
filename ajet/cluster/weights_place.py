"""Where the trainer leaves weights for the engines: shared memory on one machine, else the folder
of the run, which all machines see.

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

from ajet.core.weight_sync.folder import shared_memory_root

PREFIX = "ajet-weights-"
OWNER = ".owner"
_held: dict[Path, IO[str]] = {}


def weights_place(run_folder: Path, *, is_one_machine: bool) -> Path:
    """An empty folder of this run's own, held until this process ends."""
    name = f"{PREFIX}{os.getuid()}-{sha256(str(run_folder.absolute()).encode()).hexdigest()[:12]}"
    root = shared_memory_root(name) if is_one_machine else run_folder / "weights"
    remove_abandoned(root.parent)
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True, exist_ok=True)
    _held[root] = (root / OWNER).open("w")
    fcntl.flock(_held[root], fcntl.LOCK_EX)
    return root


def give_back(root: Path) -> None:
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
