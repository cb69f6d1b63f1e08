"""Tells whether a process holds the kernel's lock on a file.

Not covered: taking one (record/run_folder.py, rollout/stop_request.py).
"""

import fcntl
from pathlib import Path


def is_held(lock: Path) -> bool:
    """Returns True if a process of this machine holds the lock."""
    try:
        with lock.open("r", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
