"""The small process from which all programs are forked: no torch, no packages, one thread.

parent --Popen--> zygote --fork--> worker, worker, worker … (ready, all waiting at one inbox)
                                      └─fork─> program
"""

import contextlib
import gc
import importlib
import json
import math
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ajet.sandbox import isolation, kernel, landlock, seccomp, worker
from ajet.sandbox.limiter import children, kill_descendants
from ajet.sandbox.limits import Limits, ProgramGroups
from ajet.sandbox.program import Confinement

NAMESPACES, RLIMITS = "namespaces", "rlimits"

# Common imports of small programs, loaded once and shared. The list is short, since each mapped
# page makes every fork slower.
_PRELOADED = ("collections", "datetime", "itertools", "json", "math", "random", "re")
_PAUSE_MS, _RETRY_MS = 3, 100
_COUNT_EVERY_S = 5
_MAX_FAILURES = 5  # workers in a row that end before they take a call


@dataclass(frozen=True)
class ZygoteConfig:
    """The zygote's settings, which the parent sends as JSON."""

    mode: str
    limits: Limits
    num_ready: int
    num_running: int
    python_folders: tuple[str, ...]  # visible to programs
    packages: tuple[str, ...]  # those of them on sys.path
    inbox: int
    cgroup: int  # descriptor of the folder of the programs' groups, or -1
    cgroup_version: int
    is_root: bool  # root of the host: programs must become nobody


def main(text: str) -> None:
    """Answers on the inbox with one JSON line, then serves. `text` is a `ZygoteConfig` as JSON."""
    values = json.loads(text)
    setup = ZygoteConfig(**{**values, "limits": Limits(**values["limits"])})
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    inbox = socket.socket(fileno=setup.inbox)
    for name in _PRELOADED:
        importlib.import_module(name)
    try:
        zygote = Zygote(inbox, setup)
        zygote.start_first_worker()
    except OSError as error:
        inbox.send(json.dumps({"error": str(error)}).encode())
        return
    status = {
        "error": "",
        "landlock": landlock.version(),
        "seccomp": seccomp.is_available(),
        "no_cgroup": zygote.no_cgroup,
    }
    inbox.send(json.dumps(status).encode())
    zygote.serve()
    zygote.end()


class Zygote:
    """Keeps `num_ready` workers waiting at the inbox. A call is one message there, with a socket;
    the kernel gives it to one waiting worker. The worker sends "busy", and the zygote forks the
    next one. While too many programs run, calls wait in the inbox.

    The zygote ends when the inbox has no writer left, or on SIGTERM from its guard. It kills the
    workers, and the kernel their programs (parent-death signal)."""

    def __init__(self, inbox: socket.socket, setup: ZygoteConfig) -> None:
        self.inbox, self.setup = inbox, setup
        self.namespaces = setup.mode == NAMESPACES
        if self.namespaces:
            isolation.enter_view(isolation.view_of(setup.python_folders))
            # An interpreter under /tmp has another path inside, since programs have a fresh /tmp.
            sys.path[:] = map(isolation.path_inside, sys.path)
            sys.executable = isolation.path_inside(sys.executable)
        else:
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        may_be_nobody, nobody_reads = _can_become(isolation.NOBODY)
        if setup.is_root:
            _refuse_root(may_be_nobody, nobody_reads or not self.namespaces)
        packages = tuple(isolation.path_inside(path) for path in setup.packages)
        self.confinement = Confinement(
            namespaces=self.namespaces,
            limits=setup.limits,
            packages=packages if self.namespaces else setup.packages,
            view=isolation.view_of(setup.python_folders),
            is_nobody=may_be_nobody and (nobody_reads or not self.namespaces),
            has_own_user=not self.namespaces and _can_become(isolation.FIRST_OWN_USER)[0],
            reads_as_root=may_be_nobody and not nobody_reads and not self.namespaces,
        )
        self.status, self.status_of_worker = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self.ready: set[int] = set()
        self.running: set[int] = set()
        self.num_failures = 0
        self.groups, self.no_cgroup = _program_groups(setup, self.confinement.limits)
        self.group_of_next = ""
        self.group_of: dict[int, str] = {}  # pid of a worker -> its group
        self.scratch = "" if self.namespaces else _make_scratch()
        self.num_other_tasks, self.counted_at = 0, -math.inf
        gc.freeze()

    def start_first_worker(self) -> None:
        """Starts a worker. Raises OSError with the reason if the mode does not work here."""
        self.child_signal = worker.ChildSignal()
        self._fork_worker()
        message = self.status.recv(4096).decode()
        if not message.startswith("ready"):
            raise OSError(message)

    def serve(self) -> None:
        poll = select.poll()
        poll.register(self.inbox, 0)  # a hang-up is always reported
        poll.register(self.status, select.POLLIN)
        poll.register(self.child_signal, select.POLLIN)
        wait_ms: int | None = None
        while self.num_failures < _MAX_FAILURES:
            events = dict(poll.poll(wait_ms))
            if self.inbox.fileno() in events or self.child_signal.is_terminated:
                break
            self.child_signal.clear()
            ended: set[int] = set()
            with contextlib.suppress(ChildProcessError):
                while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                    ended.add(pid)
            # After reaping, since a worker sends its last message before it ends.
            self._read_status_messages()
            self.num_failures += len(ended & self.ready)
            self.forget(ended)
            if ended and not self.namespaces:
                self._kill_orphans()
            wait_ms = self._refill(quiet=not events)

    def end(self) -> None:
        """Kills all workers and programs, and removes the scratch folders."""
        for pid in self.ready | self.running:
            os.kill(pid, signal.SIGKILL)  # not yet reaped, so the id is still ours
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
                if not self.namespaces:
                    kill_descendants()
        if self.groups is not None:
            self.groups.remove(*self.group_of.values())
        if self.scratch:
            _remove(self.scratch)

    def forget(self, ended: set[int]) -> None:
        """Removes the records and groups of workers that have ended."""
        self.ready -= ended
        self.running -= ended
        groups = [self.group_of.pop(pid) for pid in ended & set(self.group_of)]
        if self.groups is not None and groups:
            self.groups.remove(*groups)

    def enter_group(self) -> None:
        """Moves this process, which will run a program, into its group."""
        if self.groups is not None:
            self.groups.enter(self.group_of_next)

    def is_out_of_memory(self) -> bool:
        """Returns whether the kernel has killed this worker's program for its memory."""
        return self.groups is not None and self.groups.has_killed(self.group_of_next)

    def _read_status_messages(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while message := self.status.recv(4096, socket.MSG_DONTWAIT).decode():
                topic, _, pid = message.partition(" ")
                if topic == "busy" and int(pid) in self.ready:
                    self.ready.remove(int(pid))
                    self.running.add(int(pid))
                    self.num_failures = 0

    def _kill_orphans(self) -> None:
        """Kills the programs of workers that were killed from outside. (With namespaces they end
        with their worker.) The zygote, a sub-reaper, adopts them, and when one ends also its
        children, for which this is called again."""
        for pid in set(children(os.getpid())) - self.ready - self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _refill(self, quiet: bool) -> int | None:
        """Forks the next worker in a pause, not while a program starts, unless few are left.
        Returns the milliseconds after which to call this again, None if no worker is missing."""
        missing = len(self.ready) < self.setup.num_ready
        if not missing or len(self.ready) + len(self.running) >= self.setup.num_running:
            return None
        if not quiet and len(self.ready) > self.setup.num_ready // 2:
            return _PAUSE_MS
        try:
            self._fork_worker()
        except OSError:
            return _RETRY_MS  # no memory or process available now; running programs continue
        return 0

    def _fork_worker(self) -> None:
        shares_user = not (self.namespaces or self.confinement.has_own_user)
        if shares_user and time.monotonic() > self.counted_at + _COUNT_EVERY_S:
            self.num_other_tasks = count_tasks_of_user(self.confinement)
            self.counted_at = time.monotonic()
        if self.groups is not None:
            self.group_of_next = self.groups.make()
        name_read, name_write = os.pipe2(os.O_CLOEXEC)
        pid = kernel.fork_into_pid_namespace() if self.namespaces else os.fork()
        if pid == 0:
            os.close(name_write)
            _become_worker(self, name_read)
        os.close(name_read)
        os.write(name_write, str(pid).encode())  # inside its namespace a worker's pid is 1
        os.close(name_write)
        if self.groups is not None:
            self.group_of[pid] = self.group_of_next
        self.ready.add(pid)


def _become_worker(zygote: Zygote, name_pipe: int) -> NoReturn:
    name = os.read(name_pipe, 32).decode()
    os.close(name_pipe)
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        worker.ChildSignal.restore_defaults()
        zygote.status.close()
        if zygote.namespaces:
            isolation.enter_fresh_namespaces(zygote.confinement.limits)
            _serve_one_call(zygote, name)  # /tmp disappears with the namespace
        else:
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
            scratch = Path(zygote.scratch, name)
            scratch.mkdir()
            scratch.chmod(0o777 if zygote.confinement.is_nobody else 0o700)
            os.chdir(scratch)
            _serve_one_call(zygote, name, scratch)
    except OSError as error:
        zygote.status_of_worker.send(f"failed {name}: {error}".encode())
    finally:
        os._exit(0)


def _serve_one_call(zygote: Zygote, name: str, scratch: Path | None = None) -> None:
    child = worker.fork_program(zygote.confinement, zygote.num_other_tasks, zygote.enter_group)
    zygote.status_of_worker.send(f"ready {name}".encode())
    _, fds, _, _ = socket.recv_fds(zygote.inbox, 16, 1)
    if not fds:
        child.control.close()  # no more calls: the program's process ends on EOF
        return
    zygote.inbox.close()
    zygote.status_of_worker.send(f"busy {name}".encode())
    with socket.socket(fileno=fds[0]) as call:
        limits = zygote.confinement.limits
        answer = worker.serve_call(call, child, limits, zygote.is_out_of_memory)
        if scratch is not None:
            os.chdir("/")
            _remove(str(scratch))
        with contextlib.suppress(ConnectionError):  # the caller gave up
            call.sendall(answer)


def _program_groups(setup: ZygoteConfig, limits: Limits) -> tuple[ProgramGroups | None, str]:
    """Returns the groups, after a test that a process can enter one, or the reason why not."""
    if setup.cgroup < 0:
        return None, ""
    groups = ProgramGroups(setup.cgroup, setup.cgroup_version, limits)
    try:
        name = groups.make()
    except OSError as error:
        return None, str(error)
    pid = os.fork()
    if pid == 0:
        try:
            groups.enter(name)
        except OSError as error:
            os._exit(min(error.errno or 1, 255))
        os._exit(0)
    failed = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    groups.remove(name)
    return (None, os.strerror(failed)) if failed else (groups, "")


def _make_scratch() -> str:
    """Makes the parent of the workers' scratch folders, which other users cannot list."""
    import tempfile  # large, and only needed here

    folder = tempfile.mkdtemp(prefix="ajet-sandbox-")
    Path(folder).chmod(0o711)
    return folder


def _remove(folder: str) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _can_become(user: int) -> tuple[bool, bool]:
    """Returns (may this process become the user, can that user read the standard library). In
    a container the user's number may not be mapped."""
    if os.geteuid() != 0:
        return False, False
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(*[isolation.NOBODY] * 3)
            os.setresuid(*[user] * 3)
            os._exit(0 if os.access(os.__file__, os.R_OK) else 1)
        except OSError:
            os._exit(2)
    exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return exit_code in (0, 1), exit_code == 0


def _refuse_root(may_be_nobody: bool, can_read: bool) -> None:
    """Raises OSError if programs would run as root: even inside a namespace root owns root's
    files."""
    if not may_be_nobody:
        raise OSError(
            "programs would run as root: this process may not become user nobody;"
            " run it as an ordinary user, or with CAP_SETUID and CAP_SETGID"
        )
    if not can_read:
        raise OSError(
            f"programs would run as root: user nobody cannot read {os.__file__};"
            " make the interpreter's files readable for all"
        )


def count_tasks_of_user(confinement: Confinement) -> int:
    """Returns the number of the user's other processes and threads, both of which RLIMIT_NPROC
    counts."""
    uid = isolation.NOBODY if confinement.is_nobody else os.geteuid()
    total = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if folder.stat().st_uid == uid:
                    total += sum(1 for _ in (folder / "task").iterdir())
            except OSError:
                continue  # it ended meanwhile
    return total
