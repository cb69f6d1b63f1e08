"""Runs a command, and ends it and its children when the process that started this has ended.

    python process_guard.py GRACE_S PID_FILE COMMAND …   # standard input is a pipe of the parent

    parent ──> handle ──> guard ──> command ──> …  one process group, whose id is in PID_FILE

The kernel closes that pipe however the parent ends, also after a kill -9. The guard then sends
SIGTERM to the group, and SIGKILL after GRACE_S seconds. When the command ends by itself, the guard
ends the rest of its group too, and the handle exits with the command's status (128 plus the number
of a signal, as in a shell). The handle does nothing else. It is there because Ray kills the
children of an actor that ends: the guard is no child of the actor, so it survives and can do its
work. The guard also ends the group when the handle is gone.

Python's resource trackers are the last to be killed: they remove the shared memory of the others.

The module uses only the standard library, since it runs before anything else is imported. Not
covered: a child that leaves the process group.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

POLL_S, SIGNALLED = 0.1, 128
TRACKER_S = 1.0
"""The seconds that a resource tracker has to clean up once it is alone."""


def main() -> int:
    """Starts the guard, waits for it, and returns the command's status."""
    grace_s, pid_file, command = float(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # handle and guard must outlive the command
    handle = os.getpid()
    pid_file.write_text(f"{handle}\n")
    if guard := os.fork():
        sys.stdin.close()
        status = os.waitstatus_to_exitcode(os.waitpid(guard, 0)[1])
    else:
        status = _run_guarded(command, handle, grace_s)
    _remove_pid_file(pid_file, handle)
    return status if status >= 0 else SIGNALLED - status


def _run_guarded(command: list[str], handle: int, grace_s: float) -> int:
    """Runs in the guard: starts the command, waits for it or for the parent's end, and ends the
    group. Returns the command's status."""
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    _wait_for_any(child, handle)
    status = child.poll()
    _end_group(child, handle, grace_s)
    if status is None:
        return 1
    return status if status >= 0 else SIGNALLED - status


def _wait_for_any(child: "subprocess.Popen[bytes]", handle: int) -> None:
    """Waits until the command, the parent or the handle has ended."""
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        while child.poll() is None and os.getppid() == handle:
            if selector.select(POLL_S) and not os.read(sys.stdin.fileno(), 1):
                return


def _end_group(child: "subprocess.Popen[bytes]", handle: int, grace_s: float) -> None:
    os.killpg(0, signal.SIGTERM)
    _wait_until_alone(child, handle, grace_s)
    for pid in _group_members(handle):
        if not _is_tracker(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    _wait_until_alone(child, handle, TRACKER_S)
    for pid in _group_members(handle):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _wait_until_alone(child: "subprocess.Popen[bytes]", handle: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while (child.poll() is None or any(_group_members(handle))) and time.monotonic() < end:
        time.sleep(POLL_S)


def _group_members(handle: int) -> Iterator[int]:
    """Yields the running processes of the group without the guard and its handle."""
    own = (os.getpid(), handle)
    for name in os.listdir("/proc"):  # noqa: PTH208, pathlib takes as long as all the rest
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            is_ours = name.isdigit() and int(name) not in own and os.getpgid(int(name)) == handle
            if (
                is_ours
                and Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
            ):
                yield int(name)


def _remove_pid_file(pid_file: Path, handle: int) -> None:
    """Removes the file unless it names another server of this name that has started meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        if pid_file.read_text() == f"{handle}\n":
            pid_file.unlink()


def _is_tracker(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


if __name__ == "__main__":
    sys.exit(main())
