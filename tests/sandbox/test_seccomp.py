"""The filter by itself, in a child process that keeps root's rights: what it refuses, nothing else
would refuse."""

import errno
import os
import platform

import pytest

from ajet.sandbox import kernel, seccomp

# Arguments with which each call acts on the process P and changes nothing.
CALLS = {
    "ioprio_set": (1, "P", 0x4000),
    "migrate_pages": ("P", 0, None, None),
    "move_pages": ("P", 0, None, None, None, 0),
    "prlimit64": ("P", 4, None, None),
    "sched_setaffinity": ("P", 0, None),
    "sched_setattr": ("P", None, 0),
    "sched_setparam": ("P", None),
    "sched_setscheduler": ("P", 0, None),
    "setpriority": (0, "P", 19),
}


@pytest.mark.skipif(not seccomp.is_available(), reason="no filter for this kernel or architecture")
def test_each_call_that_takes_a_process_takes_the_callers_alone() -> None:
    assert set(CALLS) == set(seccomp._OWN_PROCESS_ONLY)
    column = {"x86_64": 0, "aarch64": 1}[platform.machine()]
    reader, writer = os.pipe()
    parent = os.getpid()
    if (pid := os.fork()) == 0:
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        seccomp.install(host_sockets_visible=False)
        for name, arguments in CALLS.items():
            number = seccomp._OWN_PROCESS_ONLY[name][column]
            targets = (0, os.getpid(), parent, 1)
            refused = [is_refused(number, arguments, target) for target in targets]
            os.write(writer, f"{name} {refused}\n".encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as lines:
        assert lines.read() == "".join(f"{name} [False, False, True, True]\n" for name in CALLS)


def is_refused(number: int | None, arguments: tuple[object, ...], target: int) -> bool:
    assert number is not None
    try:
        kernel.raw_call(number, *(target if one == "P" else one for one in arguments))
    except OSError as error:
        return error.errno == errno.EPERM
    return False
