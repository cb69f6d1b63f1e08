"""The process that runs one program. It is forked in advance and waits for the program.

`random` is seeded with the program's text, and PYTHONHASHSEED is 0. Other sources of randomness
(`os.urandom`, `numpy.random`, `id`, time, threads) are not controlled.
"""

import atexit
import linecache
import os
import random
import signal
import socket
import sys
import threading
import traceback
import types
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ajet.sandbox import isolation, kernel, landlock, seccomp
from ajet.sandbox.limits import Limits, apply_rlimits

FILE_NAME = "/tmp/program.py"
READY = b"ready"
_INSIDE_ID = 1000


@dataclass(frozen=True)
class Confinement:
    """How programs are confined, depending on the zygote's mode."""

    namespaces: bool
    limits: Limits
    packages: tuple[str, ...]  # folders appended to sys.path
    view: isolation.FilesystemView  # without namespaces, Landlock leaves only this readable
    is_nobody: bool  # root becomes user nobody to run programs
    has_own_user: bool  # ... or, without namespaces, a separate user for each program
    reads_as_root: bool  # ... but may still read all files, if only root can read Python's library


def confine(confinement: Confinement, num_other_tasks: int) -> int:
    """Irreversibly gives up all rights that a program does not need. Returns the listener of
    `seccomp.watch_sigkill`."""
    os.setsid()
    Path("/proc/self/oom_score_adj").write_text("1000")  # killed first when memory is short
    if confinement.is_nobody:
        kernel.prctl(kernel.PR_SET_KEEPCAPS, int(confinement.reads_as_root))
        user_id = isolation.FIRST_OWN_USER + os.getpid()
        os.setgroups([])
        os.setresgid(*[isolation.NOBODY] * 3)
        os.setresuid(*[user_id if confinement.has_own_user else isolation.NOBODY] * 3)
    if confinement.namespaces:
        isolation.enter_user_namespace(_INSIDE_ID)
        # In a nested user namespace a program could mount unlimited scratch disk.
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    apply_rlimits(confinement.limits, num_other_tasks)
    kernel.drop_capabilities(keep_reading=confinement.reads_as_root)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    # After the change of user, which clears it.
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if not confinement.namespaces:
        landlock.restrict(confinement.view, os.getcwd())  # noqa: PTH109 - the scratch folder
    seccomp.install(host_sockets_visible=not confinement.namespaces)
    return seccomp.watch_sigkill()


def wait_and_run(
    control: socket.socket, confinement: Confinement, num_other_tasks: int
) -> NoReturn:
    """Confines the process, waits for the program and runs it. `control` delivers the program, or
    EOF if there is none."""
    try:
        listener = confine(confinement, num_other_tasks)
    except OSError as error:
        control.sendall(f"the program's process: {error}".encode())
        os._exit(1)
    socket.send_fds(control, [READY], [listener] if listener >= 0 else [])
    if listener >= 0:
        os.close(listener)
    text = b"".join(iter(lambda: control.recv(1 << 16), b""))
    control.close()
    if not text:
        os._exit(0)
    os.closerange(3, 256)
    random.seed(text)  # after the last fork, which seeds it from the system
    os._exit(_finish(_run(text.decode("utf-8", "surrogatepass"), confinement.packages)))


def _run(code: str, packages: tuple[str, ...]) -> int:
    """Executes the program as a script; returns the exit code. Tracebacks look as if `python
    /tmp/program.py` had been called, whatever the scratch folder is."""
    module = _fresh_main(packages)
    try:
        with open("program.py", "w", encoding="utf-8") as file:  # noqa: PTH123 - twice Path's speed
            file.write(code)
        lines = [line + "\n" for line in code.splitlines()]
        linecache.cache[FILE_NAME] = (len(code), None, lines, FILE_NAME)
        exec(compile(code, FILE_NAME, "exec", dont_inherit=True), module.__dict__)  # noqa: S102
    except SystemExit as stop:
        return _exit_code(stop)
    except BaseException as error:  # noqa: BLE001 - the program's error, shown as Python does
        trace = error.__traceback__
        error.__traceback__ = trace.tb_next if trace else None  # without this file's own frame
        if sys.excepthook is sys.__excepthook__:
            traceback.print_exception(error)
        else:
            sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _fresh_main(packages: tuple[str, ...]) -> types.ModuleType:
    atexit._clear()
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=FILE_NAME, __builtins__=__builtins__)
    for name in [name for name in sys.modules if name == "ajet" or name.startswith("ajet.")]:
        del sys.modules[name]
    sys.modules["__main__"] = module
    sys.argv = [FILE_NAME]
    sys.path[:] = [os.getcwd(), *sys.path, *packages]  # noqa: PTH109 - a str, as Python has it
    return module


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return (stop.code or 0) & 0xFF
    print(stop.code, file=sys.stderr)
    return 1


def _finish(exit_code: int) -> int:
    """Does what the interpreter does at its end (threads, exit functions, flushing), except for its
    slow finalization. Returns the exit code."""
    try:
        threading._shutdown()  # type: ignore[attr-defined] # waits for the program's threads
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - a closed stream or an exit inside an exit function
        return exit_code or 120
    return exit_code
