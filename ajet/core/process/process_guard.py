"""Runs a command, and kills it and all its descendants when the process that started it ends.

    subprocess.Popen(guarded([…]))      # in the parent; every child process of ajet starts this way
    process.terminate()                 # ends the command and its descendants after a grace period

    parent ──> handle ──> guard ──> command ──> …  one session, whose id is that of the handle

The handle watches the parent, and the guard watches the handle. If either ends, or SIGTERM comes,
the guard sends SIGTERM to all descendants of the command, and SIGKILL after `grace_s` seconds. When
the command itself ends, the guard kills its remaining descendants, and the handle exits with the
command's status (128 plus the number of a signal, as in a shell).

Two processes are needed because Ray kills the children of an actor that ends; the guard is a
grandchild and survives. The kernel's parent-death signal would not work: it follows the thread that
started the child, and does not reach descendants. This file imports little: it runs before every
command.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Sequence

SIGNALLED, NOT_FOUND = 128, 127
POLL_S = 0.1
"""The interval of polling on kernels without process descriptors (before 5.3)."""
TRACKER_S = 1.0
"""How long Python's resource trackers have to clean up once everything else has ended."""
LAST_S = 5.0
"""How long SIGKILL is repeated; what survives hangs in the kernel."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.002, 0.1
_SET_CHILD_SUBREAPER = 36


def guarded(command: Sequence[str], *, grace_s: float = 0.0, pid_file: object = "") -> list[str]:
    """Returns the command line that runs `command` under a guard, as a child of this process.
    `pid_file` contains the id of the process group while it runs. Raises ConfigError outside of
    Linux."""
    if sys.platform != "linux":
        from ajet.core.errors import ConfigError
        from ajet.core.errors.codes import Code

        raise ConfigError(
            f"{command[0]}: children of a run (MCP servers, inference servers, the math judge) are "
            f"guarded by Linux, and this is {sys.platform}: run ajet in a Linux container",
            code=Code.MACHINE_TOO_SMALL,
        )
    script = [sys.executable, "-I", "-S", os.path.abspath(__file__)]  # noqa: PTH100, see above
    return [*script, str(os.getpid()), str(grace_s), str(pid_file), *command]


def main() -> int:
    """Runs in the handle: starts the guard, waits for it, and returns the command's status."""
    parent, grace_s, pid_file, command = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
    # Blocked until both processes wait for signals, so that none is lost.
    signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGTERM, signal.SIGINT, signal.SIGCHLD])
    handle = os.getpid()
    if os.getpgid(0) != handle:
        os.setsid()  # Ctrl-C in the terminal is for the parent alone
    if pid_file:
        with open(pid_file, "w") as file:  # noqa: PTH123, see above
            file.write(f"{handle}\n")
    guard = os.fork()
    if guard == 0:
        return _run_guarded(command, handle, float(grace_s))
    _release_streams()
    status = _Signals().wait_for(guard, parent)
    if status is None:
        os.kill(guard, signal.SIGTERM)
        status = os.waitpid(guard, 0)[1]
    # Unless another command that has started since has written its id.
    if pid_file and _read(pid_file) == f"{handle}\n".encode():
        os.unlink(pid_file)  # noqa: PTH108, see above
    if os.WIFSIGNALED(status):  # the guard was killed, so nobody watches the command
        os.killpg(0, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)


def _run_guarded(command: list[str], handle: int, grace_s: float) -> int:
    """Runs in the guard: starts the command, waits for it or for the parent's end, and kills all
    descendants. Returns the command's status."""
    import ctypes

    # Orphans become children of the guard, so that it finds descendants in any session.
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ignored = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores them, and children would inherit it
    try:
        child = os.posix_spawnp(command[0], command, os.environ, setsigmask=(), setsigdef=ignored)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND
    _release_streams()
    status = _Signals().wait_for(child, handle)
    statuses = [] if status is None else [status]
    _end_descendants(child, grace_s, statuses)
    exit_code = os.waitstatus_to_exitcode(statuses[0]) if statuses else -signal.SIGKILL
    return exit_code if exit_code >= 0 else SIGNALLED - exit_code


class _Signals:
    """Makes SIGTERM, SIGINT and SIGCHLD wake this process instead of ending it."""

    def __init__(self) -> None:
        self._must_end = False
        # A pipe to which Python writes a byte for each signal, so that `poll` returns.
        self._read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    def _end(self, *_: object) -> None:
        self._must_end = True

    def wait_for(self, child: int, parent: int) -> int | None:
        """Returns the child's wait status once it has ended, or None once the parent has ended or
        SIGTERM has come."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        timeout_ms = POLL_S * 1000
        try:
            poll.register(os.pidfd_open(parent), select.POLLIN)
            timeout_ms = None
        except OSError:
            pass  # an old kernel, or the parent is gone: the loop checks its id
        while True:
            if (status := _reap(child)[0]) is not None:
                return status
            if self._must_end or os.getppid() != parent:
                return None
            poll.poll(timeout_ms)
            with contextlib.suppress(BlockingIOError):
                os.read(self._read, 4096)


def _reap(child: int) -> tuple[int | None, bool]:
    """Reaps all children that have ended, adopted orphans included. Returns the status of `child`
    if it is among them, and whether any child is left."""
    status = None
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status = ended[1] if ended[0] == child else status
    except ChildProcessError:
        return status, False
    return status, True


def _end_descendants(child: int, grace_s: float, statuses: list[int]) -> None:
    """Kills all descendants, and appends the status of `child` to `statuses`."""
    _signal_all(descendants(), signal.SIGTERM)
    _wait_until_alone(child, grace_s, statuses)
    # Resource trackers last: they remove the shared memory of the others.
    for pid in descendants():
        if b"resource_tracker" not in _read(f"/proc/{pid}/cmdline"):
            _signal_all([pid], signal.SIGKILL)
    _wait_until_alone(child, TRACKER_S, statuses)
    last = time.monotonic() + LAST_S
    while _collect(child, statuses) and time.monotonic() < last:
        _signal_all(descendants(), signal.SIGKILL)  # repeated: new ones may have started
        _wait_until_alone(child, _LONGEST_WAIT_S, statuses)


def _wait_until_alone(child: int, seconds: float, statuses: list[int]) -> None:
    end, wait_s = time.monotonic() + seconds, _FIRST_WAIT_S
    while _collect(child, statuses) and time.monotonic() < end:
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def _collect(child: int, statuses: list[int]) -> bool:
    """Appends the status of `child` if it has ended, and returns whether a descendant is left. An
    orphan becomes a child of this process, so having none is certain; a listing of /proc is not: it
    misses what loses its parent while it is read."""
    status, has_children = _reap(child)
    if status is not None:
        statuses.append(status)
    return has_children


def descendants() -> list[int]:
    """Returns the running descendants of this process."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208, pathlib takes as long as all the rest
        if name.isdigit() and (stat := _read(f"/proc/{name}/stat")):
            state, ppid = stat.rpartition(b")")[2].split()[:2]
            if state != b"Z":
                children.setdefault(int(ppid), []).append(int(name))
    pids = [os.getpid()]
    for pid in pids:  # the list grows within the loop: breadth first
        pids += children.get(pid, ())
    return pids[1:]


def _read(path: str) -> bytes:
    """Returns the content of a file, or nothing if it is gone, as for a process that has ended."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123, see above
            return file.read()
    except OSError:
        return b""


def _signal_all(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        # It may have ended, or belong to another user by now.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _release_streams() -> None:
    """Closes the command's streams here, so that readers notice when the command has ended."""
    empty = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(empty, stream)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


if __name__ == "__main__":
    sys.exit(main())
