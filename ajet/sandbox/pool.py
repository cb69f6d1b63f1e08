"""Starts the zygote at the first call and sends it programs; this runs in the parent process.

outcome = await default_pool().run("print(1 + 2)", timeout=5)      # Outcome(0, "3\\n", "")
"""

import asyncio
import atexit
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ajet.core.errors import EnvironmentFault
from ajet.core.process.process_guard import guarded
from ajet.sandbox import isolation, landlock, worker, zygote
from ajet.sandbox.limits import Limits, ProgramsFolder, open_programs_folder

MODES = (zygote.NAMESPACES, zygote.RLIMITS)
"""In the order in which they are tried."""
_START_TIMEOUT_S = 30
_END_TIMEOUT_S = 2  # in which the zygote ends all programs and removes their folders
_ANSWER_GRACE_S = 30  # beyond the program's own time, on a busy machine
_HEAD_BYTES = 1 << 16
_ATTEMPTS = 3
_MAX_KILLS = 2
# Empty modules replace the parent packages, so that the zygote does not run their imports.
_BOOT = """
import sys, types
for name, folder in (("ajet", {0!r}), ("ajet.sandbox", {1!r})):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from ajet.sandbox import zygote
zygote.main(sys.argv[1])
"""
_ENVIRONMENT = {
    "HOME": isolation.SCRATCH,
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONIOENCODING": "utf-8",
    "PYTHONUTF8": "1",
    "TZ": "UTC",
}
# Like -I, which would also ignore PYTHONHASHSEED; the environment above is complete.
_FLAGS = ("-s", "-S", "-P", "-u")


class SandboxError(EnvironmentFault):
    """No worker could be started, or something else killed the program twice. The program is not
    the cause, so it gets no answer."""


@dataclass(frozen=True)
class Outcome:
    """A program's exit code and output. A negative code is the signal that ended it; -1 means
    a timeout."""

    returncode: int
    stdout: str
    stderr: str


@dataclass
class _RunningZygote:
    """A zygote that has reported that it is ready."""

    process: subprocess.Popen[bytes]
    inbox: socket.socket
    mode: str
    landlock: int  # the version of the kernel's Landlock, 0 for none
    seccomp: bool
    groups: ProgramsFolder | None  # the programs' cgroups
    no_cgroup: str  # the reason why there are none


class SandboxPool:
    """Runs programs, each in a fresh process; starts on demand and ends with this process. It may
    be used from several event loops and threads: each call makes a socket and sends it to the
    zygote in one message. A cancelled call closes its socket, which kills its program. A fork of
    this process starts another zygote."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        modes: Sequence[str] | None = None,
        num_ready: int = 8,
        num_running: int = 64,
    ) -> None:
        self.limits = limits or Limits()
        self._modes = tuple(MODES if modes is None else modes)
        self._num_ready, self._num_running = num_ready, num_running
        self._running: _RunningZygote | None = None
        self._refusals: list[str] = []
        self._lock = threading.Lock()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    async def run(self, code: str, timeout: float) -> Outcome:
        """Runs one program, and once more if it or its supervisor is killed from outside (by
        a user, or because the machine is out of memory). Raises SandboxError if no worker can be
        started, or it is killed again."""
        request = code.encode("utf-8", "surrogatepass") or b"\n"
        frame = worker.HEADER.pack(len(request)) + struct.pack("<d", timeout) + request
        num_kills = 0
        for _ in range(_ATTEMPTS):
            running = self._running or await asyncio.to_thread(self.start)
            answer = await _call(running.inbox, frame, timeout, self.limits)
            if answer is None:
                self._discard(running)
            elif (outcome := _outcome(answer, timeout)) is not None:
                return outcome
            else:
                num_kills += 1
                if num_kills == _MAX_KILLS:
                    raise SandboxError(
                        f"sandbox: the program's processes were killed {num_kills} times, by "
                        "neither the program nor its limits: look for the kernel's out-of-memory "
                        "killer (dmesg) or a process that kills others"
                    )
        raise SandboxError(f"the sandbox died {_ATTEMPTS} times before it took a program")

    def start(self) -> _RunningZygote:
        """Starts the zygote in the strongest mode that works here; blocks for about 0.2 s."""
        with self._lock:
            if self._running is not None:
                return self._running
            self._refusals = []
            for mode in self._modes:
                started = _start_zygote(mode, self.limits, self._num_ready, self._num_running)
                if isinstance(started, _RunningZygote):
                    self._running = started
                    return started
                self._refusals.append(f"{mode}: {started}")
            raise SandboxError(f"no sandbox: {'; '.join(self._refusals)}")

    def report(self) -> str:
        """Says in one line how programs are confined here, and why stronger modes failed."""
        running = self.start()
        line = _CONFINEMENT[running.mode]
        if running.mode == zygote.RLIMITS:
            line += f", {landlock.describe(running.landlock)}" if running.landlock else _NO_LANDLOCK
        if not running.seccomp:
            line += _NO_SECCOMP
        line += f", no memory cgroup: {running.no_cgroup}" if running.no_cgroup else _CGROUP
        return f"{line} ({'; '.join(self._refusals)})" if self._refusals else line

    @property
    def holds(self) -> bool:
        """Whether programs have no network, and can neither see nor change the user's files."""
        running = self.start()
        is_confined = running.seccomp and running.landlock >= landlock.TRUNCATION_SINCE
        return running.mode != zygote.RLIMITS or is_confined

    @property
    def is_weak(self) -> bool:
        return self.start().mode == zygote.RLIMITS

    def close(self) -> None:
        running = self._running
        if running is not None:
            self._discard(running)

    def _discard(self, running: _RunningZygote) -> None:
        with self._lock:
            if self._running is running:
                self._running = None
        running.inbox.close()
        _wait_for_end(running.process)
        if running.groups is not None:
            running.groups.close()

    def _forget(self) -> None:
        """Drops the zygote in a forked child, since it belongs to the parent."""
        if self._running is not None:
            self._running.inbox.close()
            self._running.process.returncode = 0  # not ours to wait for
        self._running = None
        self._lock = threading.Lock()


_CONFINEMENT = {
    zygote.NAMESPACES: "sandbox: namespaces, no network, own /tmp and /proc, rlimits",
    zygote.RLIMITS: "sandbox: WEAK, rlimits only, no namespaces",
}
_NO_LANDLOCK = " and no Landlock: programs can read and write what this user can"
_NO_SECCOMP = ", no seccomp: some system calls that should be refused (seccomp.py) are not"
_CGROUP = ", a memory cgroup"
_default: SandboxPool | None = None
_default_lock = threading.Lock()


def default_pool() -> SandboxPool:
    """Returns this process's pool, made at the first call."""
    global _default
    with _default_lock:
        if _default is None:
            _default = SandboxPool()
        return _default


def _python_folders() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns (folders of the interpreter that programs see, package folders for sys.path)."""
    base = Path(sys.base_prefix).resolve()
    interpreter = [base / name for name in ("bin", "lib", "lib64") if (base / name).is_dir()]
    interpreter.append(Path(sys.base_exec_prefix).resolve() / "lib")
    # Links are resolved, since they may point out of the view: .venv may be one.
    libraries = (Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib"))
    packages = dict.fromkeys(map(str, libraries))
    folders = dict.fromkeys([*map(str, interpreter), *packages])
    return tuple(folders), tuple(packages)


def _start_zygote(
    mode: str, limits: Limits, num_ready: int, num_running: int
) -> _RunningZygote | str:
    """Starts a zygote; returns it, or the reason why it could not start."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    folder = open_programs_folder()
    groups = folder if isinstance(folder, ProgramsFolder) else None
    with theirs:
        folders, packages = _python_folders()
        setup = zygote.ZygoteConfig(
            mode=mode,
            limits=limits,
            num_ready=num_ready,
            num_running=num_running,
            python_folders=folders,
            packages=packages,
            inbox=theirs.fileno(),
            cgroup=-1 if groups is None else groups.fd,
            cgroup_version=0 if groups is None else groups.version,
            is_root=isolation.is_root_of_host(),
        )
        process = subprocess.Popen(
            guarded(_command(setup), grace_s=_END_TIMEOUT_S),
            env=_ENVIRONMENT,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno(), *([] if groups is None else [groups.fd])],
        )
    started = _await_ready(mode, process, ours)
    if isinstance(started, str) or started.no_cgroup:
        if groups is not None:
            groups.close()
    else:
        started.groups = groups
        started.no_cgroup = "" if groups is not None else str(folder)
    return started


def _await_ready(
    mode: str, process: subprocess.Popen[bytes], inbox: socket.socket
) -> _RunningZygote | str:
    inbox.settimeout(_START_TIMEOUT_S)
    try:
        answer = inbox.recv(4096)
    except OSError as error:
        answer = json.dumps({"error": f"no answer ({error})"}).encode()
    status: dict[str, Any] = json.loads(answer) if answer else {"error": "it ended at once"}
    if status["error"]:
        inbox.close()
        _wait_for_end(process)
        return status["error"]
    inbox.setblocking(False)
    return _RunningZygote(
        process, inbox, mode, status["landlock"], status["seccomp"], None, status["no_cgroup"]
    )


def _command(setup: zygote.ZygoteConfig) -> list[str]:
    here = Path(__file__).resolve().parent
    boot = _BOOT.format(str(here.parent), str(here))
    interpreter = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    return [interpreter, *_FLAGS, "-c", boot, json.dumps(asdict(setup))]


def _wait_for_end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


async def _call(
    inbox: socket.socket, frame: bytes, timeout_s: float, limits: Limits
) -> bytes | None:
    """Sends a program and returns the worker's bytes; None if no worker took the call because the
    zygote is gone; b"" if the worker answers far too late or too much."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    try:
        ours.setblocking(False)
        with theirs:
            if not await _send_call(inbox, theirs):
                return None
        with contextlib.suppress(ConnectionError):  # no worker: the answer below is empty
            await loop.sock_sendall(ours, frame)
        answer = bytearray()
        with contextlib.suppress(ConnectionResetError):
            answer += await loop.sock_recv(ours, 1)  # no timeout: it may wait for other programs
        if answer != worker.STARTED:
            return None
        answer.clear()
        with contextlib.suppress(ConnectionResetError, TimeoutError):
            async with asyncio.timeout(timeout_s + _ANSWER_GRACE_S):
                while chunk := await loop.sock_recv(ours, 1 << 16):
                    answer += chunk
                    if len(answer) > 2 * limits.output_bytes + _HEAD_BYTES:
                        return b""
                return bytes(answer)
        return b""
    finally:
        ours.close()


async def _send_call(inbox: socket.socket, call: socket.socket) -> bool:
    while True:
        try:
            socket.send_fds(inbox, [b"call"], [call.fileno()])
            return True
        except BlockingIOError:
            await asyncio.sleep(0.005)  # the inbox is full: hundreds of calls are waiting
        except OSError:
            return False


def _outcome(answer: bytes, timeout: float) -> Outcome | None:
    """Returns the outcome; None if the supervisor did not answer, or the program was killed from
    outside."""
    if not answer:
        return None
    lines = []
    while answer:
        (length,) = worker.HEADER.unpack_from(answer)
        lines.append(answer[worker.HEADER.size : worker.HEADER.size + length])
        answer = answer[worker.HEADER.size + length :]
    head = json.loads(lines[0])
    if head["killed_from_outside"]:
        return None
    stdout, stderr = (part.decode("utf-8", "replace") for part in lines[1:])
    if head["stopped_by"] == worker.TIMEOUT:
        note = f"TimeoutError: The code execution exceeded the timeout of {timeout} seconds."
        return Outcome(-1, stdout, f"{stderr}\n{note}" if stderr else note)
    if head["stopped_by"]:
        note = head["stopped_by"]
        return Outcome(-9, stdout, f"{stderr}\n{note}" if stderr else note)
    return Outcome(head["returncode"], stdout, stderr)
