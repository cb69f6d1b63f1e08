"""Which processes are there: below one, in a group, still running. A zombie has ended."""

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterable

import psutil


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def below(pid: int) -> set[int]:
    """All that descend from it, whatever group they are in."""
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return set()
    return {each.pid for each in found if is_running(each.pid)}


def in_group(group: int) -> set[int]:
    """A server and all that it started are one process group."""
    return {pid for pid in psutil.pids() if _group_of(pid) == group and is_running(pid)}


def command(pid: int) -> str:
    """How it was called, or has renamed itself; "" when it is gone."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return ""


def until_gone(pids: Iterable[int], within_s: float = 10.0) -> set[int]:
    """Those that are still there afterwards."""
    deadline = time.monotonic() + within_s
    while (left := set(filter(is_running, pids))) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def first_line(process: subprocess.Popen, within_s: float) -> str:
    """What it prints first, or "" when it ends; its group is killed when it says nothing."""
    if not select.select([process.stdout], [], [], within_s)[0]:
        os.killpg(process.pid, signal.SIGKILL)
    return process.stdout.readline()


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
