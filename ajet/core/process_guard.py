"""Runs a command, and ends it with all of its descendants when the process that started it ends.

    subprocess.Popen(guarded([…]))      # in the parent; every child process of ajet starts so
    process.terminate()                 # ends the command and its descendants, after a grace

    parent ──> handle ──> guard ──> command ──> …  one session, whose id is that of the handle

The handle watches the parent, however that ends and whatever the command does with its standard
streams, which are the parent's own. The guard watches the handle. If either is gone, or SIGTERM
comes, the guard sends SIGTERM to all descendants of the command and SIGKILL after `grace_s`
seconds. When the command ends by itself, the guard ends what it has left behind too, and the handle
exits with the command's status (128 plus the number of a signal, as in a shell).

There are two processes because Ray kills the children of an actor that ends: the guard is no child
of the actor, so it survives and can do its work. A kernel's parent-death signal would not do: it is
bound to the thread that started the child, not to its process, and reaches no descendants.

The guard is a sub-reaper, so that descendants stay below it whatever session they are in. Python's
resource trackers are the last to be killed: they remove the shared memory of the others.

The module uses only a little of the standard library, since it runs before each command. Not
covered: systems without /proc.
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
"""The interval at which a kernel without process descriptors (before 5.3) is asked."""
TRACKER_S = 1.0
"""The seconds that a resource tracker has to clean up once it is alone."""
LAST_S = 5.0
"""The seconds for which SIGKILL is repeated; what is left hangs in the kernel."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.002, 0.1
_SET_CHILD_SUBREAPER = 36


def guarded(command: Sequence[str], *, grace_s: float = 0.0, pid_file: object = "") -> list[str]:
    """Returns the command line that runs `command` under a guard, for a child of this process.
    `pid_file` is a path that holds the id of the process group while it runs. Raises ConfigError on
    another system than Linux."""
    if sys.platform != "linux":
        from ajet.core.error_codes import Code
        from ajet.core.errors import ConfigError

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
    # Until both processes wait for signals, these are kept back and none is lost.
    signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGTERM, signal.SIGINT, signal.SIGCHLD])
    handle = os.getpid()
    if os.getpgid(0) != handle:
        os.setsid()  # Ctrl-C in the terminal is for the parent alone
    _write_pid(pid_file, handle)
    guard = os.fork()
    if guard == 0:
        return _run_guarded(command, handle, float(grace_s))
    _release_streams()
    status = _Signals().wait_for(guard, parent)
    if status is None:
        os.kill(guard, signal.SIGTERM)
        status = os.waitpid(guard, 0)[1]
    _remove_pid(pid_file, handle)
    if os.WIFSIGNALED(status):  # the guard was killed, so nobody watches the command
        os.killpg(0, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)


def _run_guarded(command: list[str], handle: int, grace_s: float) -> int:
    """Runs in the guard: starts the command, waits for it or for the parent's end, and ends all
    descendants. Returns the command's status."""
    _become_subreaper()
    ignored = (signal.SIGPIPE, signal.SIGXFSZ)  # by Python, and a child would inherit that
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
    """Lets SIGTERM, SIGINT and SIGCHLD wake this process, instead of ending it."""

    def __init__(self) -> None:
        self._told_to_end = False
        self._read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    def _end(self, *_: object) -> None:
        self._told_to_end = True

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
            pass  # an old kernel, or the parent is gone: the loop asks for its id
        while True:
            if (status := _reap(child)) is not None:
                return status
            if self._told_to_end or os.getppid() != parent:
                return None
            poll.poll(timeout_ms)
            with contextlib.suppress(BlockingIOError):
                os.read(self._read, 4096)


def _reap(child: int) -> int | None:
    """Reaps all children that have ended, with adopted orphans; returns the status of `child` if it
    is among them."""
    status = None
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status = ended[1] if ended[0] == child else status
    except ChildProcessError:
        pass
    return status


def _end_descendants(child: int, grace_s: float, statuses: list[int]) -> None:
    """Ends all descendants, and adds the status of `child` to `found`."""
    _signal_all(_descendants(), signal.SIGTERM)
    _wait_until_alone(child, grace_s, statuses)
    _signal_all([pid for pid in _descendants() if not _is_tracker(pid)], signal.SIGKILL)
    _wait_until_alone(child, TRACKER_S, statuses)
    last = time.monotonic() + LAST_S
    while (descendants := _descendants()) and time.monotonic() < last:
        _signal_all(descendants, signal.SIGKILL)  # again: one may have been born meanwhile
        _wait_until_alone(child, _LONGEST_WAIT_S, statuses)
    _collect(child, statuses)


def _wait_until_alone(child: int, seconds: float, statuses: list[int]) -> None:
    end, wait_s = time.monotonic() + seconds, _FIRST_WAIT_S
    while _descendants() and time.monotonic() < end:
        _collect(child, statuses)
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def _collect(child: int, statuses: list[int]) -> None:
    if (status := _reap(child)) is not None:
        statuses.append(status)


def _descendants() -> list[int]:
    """Returns the running processes below this one."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208, pathlib takes as long as all the rest
        if name.isdigit() and (stat := _read(f"/proc/{name}/stat")):
            state, ppid = stat.rpartition(b")")[2].split()[:2]
            if state != b"Z":
                children.setdefault(int(ppid), []).append(int(name))
    pids = [os.getpid()]
    for pid in pids:  # grows while it is read: breadth first
        pids += children.get(pid, ())
    return pids[1:]


def _is_tracker(pid: int) -> bool:
    return b"resource_tracker" in _read(f"/proc/{pid}/cmdline")


def _read(path: str) -> bytes:
    """Returns the content of a file of /proc, which is empty for a process that has ended."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123, see above
            return file.read()
    except OSError:
        return b""


def _signal_all(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        # It may have ended, or have become another user's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _become_subreaper() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _release_streams() -> None:
    """Closes what is the command's, so that the other ends see when the command has ended."""
    empty = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(empty, stream)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def _write_pid(path: str, handle: int) -> None:
    if path:
        with open(path, "w") as file:  # noqa: PTH123, see above
            file.write(f"{handle}\n")


def _remove_pid(path: str, handle: int) -> None:
    """Removes the file unless it names another command that has started meanwhile."""
    if path and _read(path) == f"{handle}\n".encode():
        os.unlink(path)  # noqa: PTH108, see above


if __name__ == "__main__":
    sys.exit(main())
