"""Runs a command, and kills it with all its descendants once they exceed a limit. It is run by its
path, so it uses only the standard library.

    python -I -S limiter.py '{"limits": {"memory_mib": 4096, …}, …}' COMMAND…
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

EXCEEDED, NOT_FOUND, SIGNALLED = 124, 127, 128
MIB = 1 << 20
UNITS = {
    "memory_mib": "MiB of memory",
    "num_processes": "processes and threads",
    "cpu_s": "seconds of CPU",
    "folder_mib": "MiB in its folders",
}
_MEASURE_EVERY_S = 0.2
_WALK_EVERY_S = 1.0
_WALK_SHARE = 10
"""The thread that walks through folders rests this many times as long as it walks."""
_LAST_S = 5.0
"""How long SIGKILL is repeated; processes that survive this hang in the kernel."""
_BLOCK = 512
_LEAST_BYTES = 4096
"""The minimum that a file counts: many empty files fill a disk, too."""
_TICK, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Settings:
    """The caller's JSON: the limits of `ajet.harness.limits` (null: none), the file for the report,
    the folders to measure, the cgroup to enter, and the names of the command's docker
    containers."""

    limits: Mapping[str, int | None]
    report: str
    folders: Sequence[str]
    group: str | None
    containers: Sequence[str] = ()


def main(settings: Settings, command: list[str]) -> int:
    """Runs the command within the limits; returns its exit code (128 plus the number of a signal),
    or `EXCEEDED`, for which the report has one line. Between two measurements only the kernel's
    bounds hold: the size of a file, and twice the number of processes (set by limits.py,
    loopback.py, podman or docker). Memory in no process's resident set (pipes, sockets, the files
    of a tmpfs) is not measured."""
    limits = settings.limits
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _limit_files(limits)
    group = entered_group(settings.group)
    walker = FolderWalker(settings.folders, limits.get("folder_mib"))
    containers = Containers(settings.containers)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    ignored = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores them, and children inherit that
    try:
        child = os.posix_spawnp(command[0], command, os.environ, setsigmask=(), setsigdef=ignored)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND
    while (status := _reap(child)) is None:
        # The cgroup first: with very many processes, reading each from /proc would take too long.
        line = None if group is None else excess({"num_processes": group.num_processes()}, limits)
        if line is None:
            used = usage_of(os.getpid(), limits.get("memory_mib"), containers.roots())
            line = excess(used | {"folder_mib": walker.mib}, limits)
        if line is not None:
            Path(settings.report).write_text(line)
            _kill_all(group)
            return EXCEEDED
        signal.sigtimedwait([signal.SIGCHLD], _MEASURE_EVERY_S)
    if limits.get("memory_mib") is not None and containers.have_outgrown_memory():
        Path(settings.report).write_text(_excess_line("memory_mib", limits))
        return EXCEEDED
    exit_code = os.waitstatus_to_exitcode(status)
    return exit_code if exit_code >= 0 else SIGNALLED - exit_code


def excess(used: Mapping[str, float], limits: Mapping[str, int | None]) -> str | None:
    """Returns one line with the exceeded limit; None if there is none."""
    for name in UNITS:
        limit = limits.get(name)
        if limit is not None and used.get(name, 0) > limit:
            return _excess_line(name, limits)
    return None


def _excess_line(name: str, limits: Mapping[str, int | None]) -> str:
    return f"the program used more than {limits[name]} {UNITS[name]} (ajet.harness.limits.{name})"


def usage_of(root: int, memory_limit_mib: int | None, more: Sequence[int] = ()) -> dict[str, float]:
    """Returns what the descendants of `root`, and the `more` processes with theirs, use: memory in
    MiB, processes and threads, and seconds of CPU."""
    pids = list(descendants(root))
    for process in more:
        pids += [process, *descendants(process)]
    live = [process for process in map(_read_process, pids) if process is not None]
    memory_bytes = sum(process.resident_bytes for process in live)
    if memory_limit_mib is not None and memory_bytes > memory_limit_mib * MIB:
        # Resident sets count shared pages repeatedly. The exact sum takes longer, so it is made
        # only if it matters.
        memory_bytes = sum(map(_share_bytes, pids))
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "memory_mib": memory_bytes / MIB,
        "num_processes": sum(process.num_threads for process in live),
        "cpu_s": sum(process.cpu_s for process in live) + ended.ru_utime + ended.ru_stime,
    }


def descendants(root: int) -> Iterator[int]:
    """Yields all processes below this one, the nearest first; also orphans, if it is
    a sub-reaper."""
    pids = [root]
    for pid in pids:  # breadth first: the list grows meanwhile
        if pid != root:
            yield pid
        pids += children(pid)


def kill_descendants() -> bool:
    """Sends SIGKILL to all processes below this one, the nearest first; returns whether there is
    any."""
    any_left = False
    for pid in descendants(os.getpid()):  # each is killed before its children are listed
        any_left = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return any_left


def children(pid: int) -> list[int]:
    """Returns the children of a process; none if it has ended."""
    pids: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - names, not paths
            pids += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return pids


@dataclass(frozen=True)
class ProcessUsage:
    """What one process uses; its CPU time includes that of children that it has reaped."""

    resident_bytes: int
    num_threads: int
    cpu_s: float


def _read_process(pid: int) -> ProcessUsage | None:
    """Returns what a process uses; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    ticks = sum(map(int, fields[11:15]))
    return ProcessUsage(int(fields[21]) * _PAGE, int(fields[17]), ticks / _TICK)


def _share_bytes(pid: int) -> int:
    """Returns a process's memory with its share of each shared page (PSS); 0 if it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return int(text.partition("\nPss:")[2].split()[0]) * 1024


class Containers:
    """Asks docker about the command's containers, whose processes are children of docker's daemon.
    The first name is that of the command's container. Killing the descendants suffices to end them
    (loopback.py)."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._missing = list(names)
        self._found: list[int] = []
        self._since_s = time.time()

    def roots(self) -> Sequence[int]:
        """Returns the first process of each container that has started."""
        for name in list(self._missing):
            pid = _asked("inspect", "--format={{.State.Pid}}", name)
            if pid not in ("", "0"):
                self._found.append(int(pid))
                self._missing.remove(name)
        return self._found

    def have_outgrown_memory(self) -> bool:
        """Returns whether the kernel has killed a process of the command for its memory, at twice
        the limit; the command may have continued without it."""
        span = (f"--since={self._since_s:.3f}", f"--until={time.time():.3f}")
        filters = [f"--filter=container={name}" for name in self._names[:1]]
        return bool(filters and _asked("events", *span, *filters, "--filter=event=oom"))


def _asked(*arguments: str) -> str:
    """Returns the output of a docker command, "" if it fails."""
    line = ["docker", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False).stdout.strip()


class Group:
    """The cgroup of this process and its descendants. Even with very many processes, one file has
    their number and another stops new ones."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def num_processes(self) -> int:
        """Returns the number of processes and threads, without this process's. Once the kernel has
        refused a new one it returns the group's bound, since the processes that tried may have
        ended between two measurements."""
        refusals = (self._folder / "pids.events").read_text().split()
        if int(refusals[1]):  # max N
            return int((self._folder / "pids.max").read_text())
        return int((self._folder / "pids.current").read_text()) - threading.active_count()

    def forbid_new(self) -> None:
        (self._folder / "pids.max").write_text("0")


def entered_group(folder: str | None) -> Group | None:
    """Moves this process into the cgroup. Returns None without one, or if this user may make it but
    not enter it; then processes are only measured."""
    if folder is None:
        return None
    try:
        Path(folder, "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        return None
    return Group(Path(folder))


class FolderWalker:
    """Measures folders repeatedly, in a thread; `mib` is the latest result."""

    def __init__(self, folders: Sequence[str], limit_mib: int | None) -> None:
        self.mib = 0.0
        self._folders, self._limit = folders, limit_mib
        if limit_mib is not None:
            threading.Thread(target=self._run, args=(limit_mib * MIB,), daemon=True).start()

    def _run(self, limit_bytes: int) -> None:
        while True:
            started_s = time.monotonic()
            self.mib = folder_bytes(self._folders, limit_bytes) / MIB
            took_s = time.monotonic() - started_s
            time.sleep(max(_WALK_EVERY_S, _WALK_SHARE * took_s))


def folder_bytes(folders: Sequence[str], enough: int) -> int:
    """Returns the bytes on disk of all files in the folders; stops when they exceed `enough`. Does
    not follow links."""
    total = 0
    for folder in folders:
        for parent, inner, names in os.walk(folder):
            for name in (*inner, *names):
                with contextlib.suppress(OSError):
                    status = os.lstat(f"{parent}/{name}")
                    size = status.st_blocks * _BLOCK
                    total += max(size, _LEAST_BYTES)
                    if stat.S_ISREG(status.st_mode) and total > enough:
                        return total
    return total


def _limit_files(limits: Mapping[str, int | None]) -> None:
    """Bounds the size of a single file, and forbids core dumps."""
    sizes = {resource.RLIMIT_CORE: 0}
    if (most_mib := limits.get("folder_mib")) is not None:
        sizes[resource.RLIMIT_FSIZE] = most_mib * MIB
    for limit, size in sizes.items():
        hard = resource.getrlimit(limit)[1]
        size = size if hard == resource.RLIM_INFINITY else min(size, hard)
        resource.setrlimit(limit, (size, size))


def _reap(child: int) -> int | None:
    """Reaps all ended children and adopted orphans; returns the status of `child` if it is among
    them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status = ended[1] if ended[0] == child else status
    return status


def _kill_all(group: Group | None) -> None:
    """Kills all descendants, the nearest first: bubblewrap's processes take their namespace
    along."""
    if group is not None:
        group.forbid_new()
    last_s = time.monotonic() + _LAST_S
    any_left = True
    while any_left and time.monotonic() < last_s:
        any_left = kill_descendants()
        _reap(0)


if __name__ == "__main__":
    sys.exit(main(Settings(**json.loads(sys.argv[1])), sys.argv[2:]))
