"""A memory cgroup for each program: for real where this machine offers one, and on a fake tree."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ajet.sandbox.limits import (
    MIB,
    PREFIX,
    SPARE_BYTES,
    Limits,
    ProgramGroups,
    ProgramsFolder,
    open_programs_folder,
)
from ajet.sandbox.pool import Outcome, SandboxPool
from tests.processes import until_gone

LIMITS = Limits(memory_bytes=192 * MIB)
SHARED_PAGES = """
import mmap, os, time
kept = []
for _ in range(4):  # each process has little resident memory, and pages that it let go of
    shared = mmap.mmap(-1, 100 << 20)
    shared.write(bytes(100 << 20))
    shared.madvise(mmap.MADV_DONTNEED)
    kept.append(os.fork())
    if not kept[-1]:
        time.sleep(60)
    shared.close()
print("has", len(kept) * 100, "MiB")
"""
SOCKETS = """
import socket
pairs, size = [], 0
for _ in range(100):
    one, other = socket.socketpair()
    one.setblocking(False)
    for each in (one, other):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
    pairs.append((one, other))
    try:
        while True:
            size += one.send(bytes(65536))
    except BlockingIOError:
        pass
print("has", size >> 20, "MiB")
"""


@pytest.fixture
def pool():
    pool = SandboxPool(LIMITS, num_ready=1)
    if "no memory cgroup" in pool.report():
        pool.close()
        pytest.skip(pool.report())
    yield pool
    pool.close()


def run(pool: SandboxPool, code: str) -> Outcome:
    return asyncio.run(pool.run(code, 60))


def test_pages_and_sockets_that_no_process_holds_are_counted(pool: SandboxPool) -> None:
    for code in (SHARED_PAGES, SOCKETS):
        outcome = run(pool, code)
        assert outcome.returncode != 0 and "MiB" not in outcome.stdout, outcome
    assert "MemoryLimit: the program used over 201326592 bytes." in outcome.stderr
    assert run(pool, "print(len(bytearray(128 << 20)))").stdout == "134217728\n"


def test_nothing_is_left_of_the_groups(pool: SandboxPool) -> None:
    run(pool, "print(1)")
    groups = pool.start().groups
    assert groups is not None and groups.path.is_dir()
    pool.close()
    assert not groups.path.exists()


def test_the_groups_of_a_killed_run_are_removed_by_the_next(pool: SandboxPool) -> None:
    code = "import time\nfrom ajet.sandbox.pool import SandboxPool\npool = SandboxPool()\n"
    code += "print(pool.start().groups.path, pool.start().process.pid, flush=True)\ntime.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        path, handle = killed.stdout.readline().decode().split()
        killed.kill()
    assert not until_gone([int(handle)])
    other = SandboxPool(LIMITS, num_ready=1)
    other.start()
    other.close()
    assert not Path(path).exists()


def fake(tmp_path: Path, memberships: str, mounts: str, **files: str) -> Path:
    """A root folder with these files of /proc, and files of a hierarchy at /cg."""
    content = {"proc/self/cgroup": memberships, "proc/self/mountinfo": mounts}
    for path, text in (content | {f"cg/{name}": text for name, text in files.items()}).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


V2_MOUNT = "41 31 0:38 / /cg rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
ON = {"cgroup.subtree_control": "cpu memory pids\n"}


def files_in(folder: str, **files: str) -> dict[str, str]:
    return {f"{folder}/{name}": text for name, text in files.items()}


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (files_in("app/me", **ON), "cg/app/me"),  # delegated, and its processes lie deeper
        (files_in("app", **ON) | files_in("app/me", **{"memory.max": "max\n"}), "cg/app"),
    ],
)
def test_a_group_is_taken_where_the_controller_is_on(tmp_path, files, chosen) -> None:
    folder = open_programs_folder(fake(tmp_path, "0::/app/me\n", V2_MOUNT, **files))
    assert isinstance(folder, ProgramsFolder)
    assert (folder.path.parent, folder.version) == (tmp_path / chosen, 2)
    assert folder.path.name.startswith(f"{PREFIX}{os.getpid()}-")
    assert (folder.path / "cgroup.subtree_control").read_text() == "+memory +pids"
    groups = ProgramGroups(folder.fd, 2, LIMITS)
    program = folder.path / groups.make()
    written = {path.name: path.read_text() for path in program.iterdir()}
    memory = LIMITS.memory_bytes + LIMITS.scratch_bytes + SPARE_BYTES
    assert written == {"memory.max": str(memory), "memory.swap.max": "0", "pids.max": "64"}
    groups.enter(program.name)
    assert (program / "cgroup.procs").read_text() == "0"
    assert not groups.has_killed(program.name)
    (program / "memory.events").write_text("low 0\noom 0\noom_kill 1\n")
    assert not groups.has_killed(program.name)  # the whole machine was short of memory
    (program / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert groups.has_killed(program.name)
    os.close(folder.fd)


@pytest.mark.parametrize(
    ("memberships", "mounts", "files"),
    [
        ("0::/app/me\n", "", {}),
        ("0::/app/me\n", V2_MOUNT, {}),
        ("0::/app/me\n", V2_MOUNT, files_in("app", **{"cgroup.subtree_control": "cpu\n"})),
        # Beside this process's group its limit would not hold for programs.
        (
            "0::/app/me\n",
            V2_MOUNT,
            files_in("app", **ON) | files_in("app/me", **{"memory.max": "1000000\n"}),
        ),
    ],
    ids=["not mounted", "off", "another controller", "limited as a whole"],
)
def test_where_none_can_be_had_the_reason_is_told(tmp_path, memberships, mounts, files) -> None:
    reason = open_programs_folder(fake(tmp_path, memberships, mounts, **files))
    assert isinstance(reason, str) and reason.startswith("no memory controller")


def test_with_version_1_the_group_lies_below_this_processs_own(tmp_path) -> None:
    mounts = (
        "32 31 0:29 / /cg/cpu rw - cgroup cgroup rw,cpu\n"
        "35 31 0:32 /pod /cg/memory rw - cgroup cgroup rw,memory\n" + V2_MOUNT
    )
    root = fake(tmp_path, "4:memory:/pod/me\n1:cpu:/\n0::/\n", mounts, **{"memory/me/x": ""})
    folder = open_programs_folder(root)
    assert isinstance(folder, ProgramsFolder)
    assert (folder.path.parent, folder.version) == (tmp_path / "cg/memory/me", 1)
    groups = ProgramGroups(folder.fd, 1, LIMITS)
    program = folder.path / groups.make()
    memory = str(LIMITS.memory_bytes + LIMITS.scratch_bytes + SPARE_BYTES)
    written = {path.name: path.read_text() for path in program.iterdir()}
    assert written == {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory}
    os.close(folder.fd)


def emptied(program: Path) -> None:
    """Removes a group's files, which vanish with the group in the kernel's own tree."""
    for file in program.iterdir():
        file.unlink()


def test_a_group_goes_with_its_own_program_and_others_stay(tmp_path) -> None:
    folder = open_programs_folder(
        fake(tmp_path, "0::/app/me\n", V2_MOUNT, **files_in("app/me", **ON))
    )
    assert isinstance(folder, ProgramsFolder)
    groups = ProgramGroups(folder.fd, 2, LIMITS)
    ended, busy, waiting = (folder.path / groups.make() for _ in range(3))
    emptied(ended)
    emptied(waiting)  # no program has entered it yet
    groups.remove(ended.name, busy.name)
    assert (ended.exists(), busy.exists(), waiting.exists()) == (False, True, True)
    emptied(busy)  # its last process has ended
    groups.remove()
    assert not busy.exists() and waiting.exists()
    os.close(folder.fd)


def test_a_folder_of_groups_is_closed_once(tmp_path) -> None:
    folder = open_programs_folder(
        fake(tmp_path, "0::/app/me\n", V2_MOUNT, **files_in("app/me", **ON))
    )
    assert isinstance(folder, ProgramsFolder)
    number = folder.fd
    folder.close()
    other = os.open(tmp_path, os.O_RDONLY)
    assert other == number  # the kernel gives the number of the closed one to the next
    folder.close()
    os.fstat(other)
    os.close(other)
