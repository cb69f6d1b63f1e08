"""Who lives in a process group: a server and all that it started is one."""

import time
from pathlib import Path


def members(group):
    """Living processes of a group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return sorted(found)


def is_empty(group, seconds=10.0):
    end = time.monotonic() + seconds
    while members(group) and time.monotonic() < end:
        time.sleep(0.05)
    return not members(group)
