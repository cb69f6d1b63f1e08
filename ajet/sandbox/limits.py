"""The limits on one program's use of the machine: rlimits, and a cgroup where one can be made.

Not limited: disk bandwidth; without a cgroup, memory in no process's resident set or freed between
two measurements; without namespaces, scratch disk beyond one file's size.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Literal

MIB = 1024 * 1024
PREFIX = "ajet-sandbox-"
SPARE_BYTES = 32 * MIB  # page tables and stacks
_COUNTERS = ("memory", "pids")
_SUBTREE = "cgroup.subtree_control"


@dataclass(frozen=True)
class Limits:
    """The limits on one program. The supervisor measures its memory; in a cgroup the kernel counts
    all of it, also what is in no process's resident set: pipes, sockets, shared pages."""

    memory_bytes: int = 1024 * MIB  # for each process, and for all processes together
    cpu_s: int = 120  # for each process
    num_processes: int = 64  # threads count as processes
    scratch_bytes: int = 64 * MIB  # for one file, and for /tmp as a whole
    output_bytes: int = 64 * 1024  # kept of each stream: its beginning and its end
    flood_bytes: int = 256 * MIB  # a program that prints more than this is stopped


def apply_rlimits(limits: Limits, num_other_processes: int) -> None:
    """Limits the calling process and its children.

    The kernel counts processes per user: `num_other_processes` is the number of that user's other
    processes (0 if the program has a separate user or user namespace).
    """
    for resource_id, soft, hard in (
        (resource.RLIMIT_AS, limits.memory_bytes, limits.memory_bytes),
        # The soft limit sends SIGXCPU, which shows the cause; the hard one cannot be caught.
        (resource.RLIMIT_CPU, limits.cpu_s, limits.cpu_s + 1),
        (resource.RLIMIT_NPROC, *(limits.num_processes + num_other_processes,) * 2),
        (resource.RLIMIT_FSIZE, limits.scratch_bytes, limits.scratch_bytes),
        (resource.RLIMIT_NOFILE, 256, 256),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
    ):
        ceiling = resource.getrlimit(resource_id)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(resource_id, (soft, hard))


@dataclass(frozen=True)
class GroupFiles:
    """The names of files in one version of the interface."""

    memory: str
    swap: str
    swap_excludes_memory: bool  # else it limits both together
    events: str
    peak: str  # of memory; in version 2 the events say whether the group reached its limit
    processes: str


VERSIONS = {
    1: GroupFiles(
        memory="memory.limit_in_bytes",
        swap="memory.memsw.limit_in_bytes",
        swap_excludes_memory=False,
        events="memory.oom_control",
        peak="memory.max_usage_in_bytes",
        processes="",
    ),
    2: GroupFiles(
        memory="memory.max",
        swap="memory.swap.max",
        swap_excludes_memory=True,
        events="memory.events",
        peak="",
        processes="pids.max",
    ),
}


@dataclass
class ProgramsFolder:
    """The folder of the groups of one sandbox. The zygote gets `fd`."""

    path: Path
    version: int
    fd: int

    def close(self) -> None:
        """Removes the groups. A second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
            _remove_tree(self.path)


def open_programs_folder(
    root: Path = Path("/"), controller: Literal["memory", "pids"] = "memory"
) -> ProgramsFolder | str:
    """Makes a folder for the groups of a sandbox, and removes those of processes that have ended.
    Returns it, or the reason why it is impossible. `root` is where /proc and /sys are. The folder
    is a child or a sibling of this process's group, if the controller is on there and this user may
    write: root, a service with Delegate=yes, a user's systemd."""
    reason = f"no {controller} controller that this process may use"
    for folder, version in _candidates(root, controller):
        try:
            return _make_in(folder, version)
        except OSError as error:
            reason = f"{folder}: {error.strerror}"
    return reason


def _candidates(root: Path, controller: str) -> list[tuple[Path, int]]:
    """Returns the folders in which a group may be made, the best first."""
    try:
        mounts = (root / "proc/self/mountinfo").read_text()
        memberships = (root / "proc/self/cgroup").read_text()
    except OSError:
        return []
    if (place := _own_folder(root, mounts, memberships, "cgroup", controller)) is not None:
        return [(place[1], 1)]
    if (place := _own_folder(root, mounts, memberships, "cgroup2", "")) is None:
        return []
    top, current = place
    # A limit of this process's group would not apply to programs in a sibling group.
    is_limited = current != top and _read(current / f"{controller}.max").strip() not in ("max", "")
    folders = [current] if is_limited or current == top else [current, current.parent]
    return [(folder, 2) for folder in folders if controller in _read(folder / _SUBTREE).split()]


def _own_folder(
    root: Path, mounts: str, memberships: str, version: str, controller: str
) -> tuple[Path, Path] | None:
    """Returns the mounted top of a hierarchy and this process's group in it."""
    for line in mounts.splitlines():
        mount, _, right = line.partition(" - ")
        mounted_root, mount_point = mount.split()[3:5]
        file_system, _, options = right.split(" ", 2)
        if file_system != version or (controller and controller not in options.split(",")):
            continue
        for membership in memberships.splitlines():
            _, controllers, path = membership.split(":", 2)
            if controllers.split(",") == [controller] or controller in controllers.split(","):
                inside = os.path.relpath(path, mounted_root)
                top = root / mount_point.lstrip("/")
                if not inside.startswith(".."):
                    return top, top / inside
    return None


def _make_in(folder: Path, version: int) -> ProgramsFolder:
    for name in os.listdir(folder):  # noqa: PTH208 - names, not paths
        match = re.fullmatch(rf"{PREFIX}(\d+)-\d+", name)
        if match and not Path("/proc", match[1]).exists():
            _remove_tree(folder / name)
    number = 0
    while True:
        path = folder / f"{PREFIX}{os.getpid()}-{number}"
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            break
        number += 1
    try:
        if version == 2:
            on = _read(folder / _SUBTREE).split()
            (path / _SUBTREE).write_text(
                " ".join(f"+{counter}" for counter in _COUNTERS if counter in on)
            )
        return ProgramsFolder(path, version, os.open(path, os.O_RDONLY | os.O_DIRECTORY))
    except OSError:
        _remove_tree(path)
        raise


@cache
def process_counting_folder() -> ProgramsFolder | str:
    """Returns this process's folder of groups that bound the number of processes, or the reason why
    it is impossible. It is removed when this process ends."""
    folder = open_programs_folder(controller="pids")
    if isinstance(folder, ProgramsFolder):
        atexit.register(folder.close)
    return folder


@contextmanager
def bounded_processes(name: str, most: int | None) -> Iterator[Path | None]:
    """Yields a group of at most `most` processes and threads, which is removed at the end; None
    without a bound, or if no group can be made."""
    folder = process_counting_folder() if most is not None else None
    if not isinstance(folder, ProgramsFolder):
        yield None
        return
    group = folder.path / name
    group.mkdir()
    try:
        (group / "pids.max").write_text(str(most))
        yield group
    finally:
        _remove_tree(group)


class ProgramGroups:
    """Makes and removes the groups of single programs in the zygote, which sees the folder only
    through `fd`."""

    def __init__(self, fd: int, version: int, limits: Limits) -> None:
        self._fd, self._files, self._limits = fd, VERSIONS[version], limits
        self._memory_bytes = limits.memory_bytes + limits.scratch_bytes + SPARE_BYTES
        self._number = 0
        self._ended: list[str] = []

    def make(self) -> str:
        self._number += 1
        name = f"program-{self._number}"
        os.mkdir(name, dir_fd=self._fd)
        limits, files = self._limits, self._files
        memory = self._memory_bytes
        self._write(name, files.memory, memory)
        with contextlib.suppress(OSError):  # a kernel that does not count swap
            self._write(name, files.swap, 0 if files.swap_excludes_memory else memory)
        if files.processes:
            with contextlib.suppress(OSError):  # the controller is off
                self._write(name, files.processes, limits.num_processes)
        return name

    def enter(self, name: str) -> None:
        self._write(name, "cgroup.procs", 0)

    def has_killed(self, name: str) -> bool:
        """Returns whether the kernel has killed a process of the group because of the group's
        limit, and not because the machine ran out of memory."""
        events = self._read(name, self._files.events)
        if not re.search(r"^oom_kill [1-9]", events, re.MULTILINE):
            return False
        if self._files.peak:
            return int(self._read(name, self._files.peak) or 0) > self._memory_bytes - MIB
        return re.search(r"^oom [1-9]", events, re.MULTILINE) is not None

    def _read(self, name: str, file_name: str) -> str:
        """Returns a file's text, "" if the group is gone."""
        with contextlib.suppress(OSError), self._open(name, file_name, "r") as file:
            return file.read()
        return ""

    def remove(self, *names: str) -> None:
        """Removes groups whose programs have ended, at the latest with a later call. (A group that
        no program has entered yet is empty too, so emptiness does not tell.)"""
        self._ended += names
        for name in list(self._ended):
            with contextlib.suppress(OSError):  # one of its processes is still ending
                os.rmdir(name, dir_fd=self._fd)
                self._ended.remove(name)

    def _write(self, name: str, file_name: str, value: int) -> None:
        with self._open(name, file_name, "w") as file:
            file.write(str(value))

    def _open(self, name: str, file_name: str, mode: str) -> IO[str]:
        flags = os.O_WRONLY | os.O_CREAT if mode == "w" else os.O_RDONLY
        return os.fdopen(os.open(f"{name}/{file_name}", flags, dir_fd=self._fd), mode)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _remove_tree(path: Path) -> None:
    """Removes a folder of groups. Their files cannot be removed, only the folders."""
    with contextlib.suppress(OSError):
        for child in path.iterdir():
            if child.is_dir():
                _remove_tree(child)
        path.rmdir()
