"""Locks files with the kernel's flock, which ends with the process that holds it.

On Windows nothing is locked (record/run_folder.py warns), and `is_held` is always False.
"""

from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None

HAS_LOCKS = fcntl is not None


def take(file: IO[Any] | int, *, shared: bool = False, wait: bool = True) -> None:
    """Locks an open file or descriptor until it is closed. Without `wait`, raises BlockingIOError
    if another process holds the lock."""
    if fcntl is not None:
        operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(file, operation if wait else operation | fcntl.LOCK_NB)


def is_held(lock: Path) -> bool:
    """Returns True if a process of this machine holds the lock."""
    try:
        with lock.open("r", encoding="utf-8") as file:
            take(file, shared=True, wait=False)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
