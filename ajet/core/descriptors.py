"""Open files and connections: how many a process may have, and how many a run needs.

    raise_descriptor_limit()        at the start of whatever runs episodes
    descriptors_needed(64)          compared with descriptor_limit() before a run

A process may raise its own limit, the soft one, up to the hard one; many systems start it with
1,024. Not covered: the limit of all processes together (`fs.file-max`).
"""

from __future__ import annotations

import errno
import sys

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None

MAX_DESCRIPTORS = 1 << 20
"""A larger limit helps nobody, and slows programs that close every possible descriptor."""
DESCRIPTORS_OF_A_PROCESS = 256
"""The libraries, the records, the model's files and a few children."""
DESCRIPTORS_OF_AN_EPISODE = 8
"""Two for an agent over HTTP (its end and the gateway's), two for a program in the sandbox, four
for an environment or an MCP server."""
NONE_LEFT = f"Errno {errno.EMFILE}: no file descriptor was left"
"""It is in the error of each episode that failed because of that."""


def descriptor_limit() -> int:
    """Returns the limit that a command which runs episodes will have. Windows has none."""
    if resource is None:
        return sys.maxsize
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    return highest if soft == resource.RLIM_INFINITY else max(soft, highest)


def raise_descriptor_limit() -> int:
    """Raises the soft limit of this process to the hard one, and returns it. Its children have the
    same limit."""
    limit = descriptor_limit()
    if resource is None:
        return limit
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def descriptors_needed(max_env_worker: int) -> int:
    """Returns about how many descriptors a process needs that runs so many episodes at once
    (`ajet.rollout.max_env_worker`)."""
    return DESCRIPTORS_OF_A_PROCESS + DESCRIPTORS_OF_AN_EPISODE * max_env_worker


def is_out_of_descriptors(error: BaseException) -> bool:
    """Returns whether a missing descriptor is the cause of the error, or of a cause of it."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, OSError) and _number_of(cause) in (errno.EMFILE, errno.ENFILE):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _number_of(error: OSError) -> object:
    """Returns `error.errno`, whatever a user's class makes of that name."""
    return vars(OSError)["errno"].__get__(error)
