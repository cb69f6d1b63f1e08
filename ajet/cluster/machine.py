"""Reads what this machine, or its container, has: memory, and limits that the kernel states."""

import os
from pathlib import Path


def machine_memory() -> int | None:
    """Returns the bytes of memory of this machine, or of its container where that is less; None
    where the system does not tell (Windows)."""
    if not hasattr(os, "sysconf"):
        return None
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = number_in(Path("/sys/fs/cgroup/memory.max"))
    return min(total, limit) if limit is not None else total


def number_in(file: Path) -> int | None:
    """Returns the number in a file of the kernel's; None where it says "max" or is not there."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
