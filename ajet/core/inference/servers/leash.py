"""Runs a command and ends it, with all that it started, when whoever started this is gone.

    python leash.py GRACE_S COMMAND ARGUMENT …     standard input: a pipe that its parent holds open

The kernel closes that pipe however the parent ends, a kill -9 included. The leash leads the
process group; on the pipe's end it sends SIGTERM to the group, and SIGKILL after GRACE_S seconds.
When the command ends by itself, what is left of its group ends too, and the leash exits with the
command's status.

Only the standard library: it runs before anything else is imported. Not covered: a child that
leaves the process group.
"""

import os
import selectors
import signal
import subprocess
import sys
import time

POLL_S = 0.1


def main() -> int:
    """See the module's docstring."""
    grace_s, command = float(sys.argv[1]), sys.argv[2:]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # it is the last to go
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    _wait_for_either(child)
    status = child.poll()
    _end_group(child, grace_s if status is None else 0)
    return status if status is not None and status >= 0 else 1


def _wait_for_either(child: "subprocess.Popen[bytes]") -> None:
    """Until the command has ended, or the parent has."""
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        while child.poll() is None:
            if selector.select(POLL_S) and not os.read(sys.stdin.fileno(), 1):
                return


def _end_group(child: "subprocess.Popen[bytes]", grace_s: float) -> None:
    os.killpg(0, signal.SIGTERM)
    end = time.monotonic() + grace_s
    while child.poll() is None and time.monotonic() < end:
        time.sleep(POLL_S)
    if child.poll() is None or _has_others():
        os.killpg(0, signal.SIGKILL)


def _has_others() -> bool:
    """Whether anybody but the leash is in its group."""
    own = os.getpid()
    for name in os.listdir("/proc"):  # noqa: PTH208, pathlib takes as long as all the rest
        try:
            if name.isdigit() and int(name) != own and os.getpgid(int(name)) == own:
                return True
        except ProcessLookupError:
            continue
    return False


if __name__ == "__main__":
    sys.exit(main())
