"""File descriptors: how many a process may open, and how many a run needs.

A process may raise its soft limit, often 1,024, up to the hard one: whatever runs episodes calls
`raise_descriptor_limit` at its start.
"""

from __future__ import annotations

import errno
import sys

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None

MAX_DESCRIPTORS = 1 << 20
"""A larger limit only slows down programs that close every possible descriptor."""
DESCRIPTORS_OF_A_PROCESS = 256
"""The libraries, the records, the model's files and a few children."""
DESCRIPTORS_OF_AN_EPISODE = 8
"""Two for an agent over HTTP (both ends), two for a program in the sandbox, four for an environment
or an MCP server."""
NONE_LEFT = f"Errno {errno.EMFILE}: no file descriptor was left"
"""Part of the error of each episode that failed for this reason."""


def descriptor_limit() -> int:
    """Returns the limit after `raise_descriptor_limit`. Windows has none."""
    if resource is None:
        return sys.maxsize
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    return highest if soft == resource.RLIM_INFINITY else max(soft, highest)


def raise_descriptor_limit() -> int:
    """Raises the soft limit of this process and its children to the hard one, and returns it."""
    limit = descriptor_limit()
    if resource is None:
        return limit
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def descriptors_needed(max_env_worker: int) -> int:
    """Returns how many descriptors a process needs to run this many episodes at once."""
    return DESCRIPTORS_OF_A_PROCESS + DESCRIPTORS_OF_AN_EPISODE * max_env_worker


def is_out_of_descriptors(error: BaseException) -> bool:
    """Returns whether the error, or one in its chain of causes, is a lack of descriptors."""
    seen: set[int] = set()  # a chain of causes may be a circle
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        # Read by OSError's descriptor: a user's class may define `errno` as something else.
        number = vars(OSError)["errno"].__get__(cause) if isinstance(cause, OSError) else None
        if number in (errno.EMFILE, errno.ENFILE):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
