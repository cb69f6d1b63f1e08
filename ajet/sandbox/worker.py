"""The supervisor of one program: the first process of its PID namespace.

It takes one call, keeps the head and the tail of the program's output, watches time and memory,
kills all processes that the program started, answers, and ends. It never runs the program's code.
"""

import contextlib
import json
import math
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ajet.sandbox import isolation, kernel, program, seccomp
from ajet.sandbox.limiter import descendants, kill_descendants
from ajet.sandbox.limits import Limits
from ajet.sandbox.program import Confinement

STARTED = b"S"
TIMEOUT, ABANDONED = "timeout", "abandoned"
HEADER = struct.Struct("<I")  # the number of bytes that follow
_CHECK_EVERY_S = 0.1
_PAGE = os.sysconf("SC_PAGE_SIZE")


class ChildSignal:
    """A file descriptor that becomes readable when a child ends, or SIGTERM comes."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.is_terminated = False
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._end)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def _end(self, *_: object) -> None:
        self.is_terminated = True

    def fileno(self) -> int:
        return self._read

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)

    @staticmethod
    def restore_defaults() -> None:
        """Restores Python's defaults, in a forked child."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)


@dataclass
class Stream:
    """The kept parts of one output stream: three quarters of `limit` from its beginning, the rest
    from its end."""

    fd: int
    limit: int
    num_bytes: int = 0
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    open: bool = True

    def read(self) -> bool:
        """Reads one chunk; returns False if there was none."""
        try:
            chunk = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return False
        self.open = bool(chunk)
        self.num_bytes += len(chunk)
        free = self.limit * 3 // 4 - len(self.head)
        self.head += chunk[:free]
        self.tail += chunk[free:]
        del self.tail[: max(0, len(self.tail) - self.limit // 4)]
        return bool(chunk)

    def text(self) -> bytes:
        num_left_out = self.num_bytes - len(self.head) - len(self.tail)
        if not num_left_out:
            return bytes(self.head + self.tail)
        note = f"\n[... {num_left_out} bytes of output left out ...]\n"
        return bytes(self.head + note.encode() + self.tail)


@dataclass
class Child:
    """The program's process, and the supervisor's ends of its pipes. `sigkills` is the listener of
    `seccomp.watch_sigkill`, if there is one."""

    pid: int
    control: socket.socket
    stdout: int
    stderr: int
    sigkills: int | None


def fork_program(
    confinement: Confinement, num_other_tasks: int, enter_group: Callable[[], None]
) -> Child:
    """Forks the process that will run the program, which first calls `enter_group`. Raises OSError
    if it cannot be confined."""
    control, control_inside = socket.socketpair()
    stdout, stdout_inside = os.pipe2(os.O_CLOEXEC)
    stderr, stderr_inside = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        enter_group()
        ChildSignal.restore_defaults()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(stdout_inside, 1)
        os.dup2(stderr_inside, 2)
        # Of the worker's descriptors the program's process keeps this one and the streams.
        os.closerange(3, control_inside.fileno())
        os.closerange(control_inside.fileno() + 1, 256)
        program.wait_and_run(control_inside, confinement, num_other_tasks)
    for fd in (stdout_inside, stderr_inside):
        os.close(fd)
    control_inside.close()
    answer, listeners, _, _ = socket.recv_fds(control, 4096, 1)
    if answer != program.READY:
        raise OSError(answer.decode() or "the program's process ended before it was ready")
    if confinement.namespaces:
        isolation.make_proc_read_only()
    os.set_blocking(stdout, False)
    os.set_blocking(stderr, False)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # the program may not look into its supervisor
    return Child(pid, control, stdout, stderr, listeners[0] if listeners else None)


def serve_call(
    call: socket.socket, child: Child, limits: Limits, out_of_memory: Callable[[], bool]
) -> bytes:
    """Serves one call and returns the answer to send. `out_of_memory` returns whether the kernel
    has killed the program for its memory."""
    call.sendall(STARTED)
    header = _read_exactly(call, HEADER.size + 8)
    if header is None:
        return b""  # the caller gave up
    (length,) = HEADER.unpack(header[: HEADER.size])
    (timeout,) = struct.unpack("<d", header[HEADER.size :])
    code = _read_exactly(call, length)
    if code is None:
        return b""
    deadline = time.monotonic() + timeout
    with contextlib.suppress(BrokenPipeError):  # it was killed, which the supervisor reports
        child.control.sendall(code)
    child.control.close()
    answer = Supervisor(call, child, limits, deadline, out_of_memory).run()
    return b"".join(HEADER.pack(len(part)) + part for part in answer)


def _read_exactly(call: socket.socket, length: int) -> bytes | None:
    data = bytearray()
    while len(data) < length:
        chunk = call.recv(min(1 << 16, length - len(data)))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


class Supervisor:
    """Watches one program until it ends, then kills its remaining processes."""

    def __init__(
        self,
        call: socket.socket,
        child: Child,
        limits: Limits,
        deadline: float,
        out_of_memory: Callable[[], bool],
    ) -> None:
        self.call, self.child, self.limits, self.deadline = call, child, limits, deadline
        self.out_of_memory = out_of_memory
        self.streams = [Stream(fd, limits.output_bytes) for fd in (child.stdout, child.stderr)]
        self.returncode: int | None = None
        self.stopped_by = ""  # TIMEOUT, ABANDONED or a line for the program's stderr
        self.killed_itself = False
        self.used_up_cpu = False
        self.signal = ChildSignal()
        self.next_memory_check = time.monotonic() + _CHECK_EVERY_S

    def run(self) -> tuple[bytes, bytes, bytes]:
        """Waits for the program's end and returns a JSON head, standard output and standard
        error."""
        self._reap()  # it may have ended before the signal handler was set up
        while self.returncode is None and not self.stopped_by:
            self._wait_for_something()
        was_killed = self.returncode == -signal.SIGKILL
        if was_killed and self.out_of_memory():
            self.stopped_by = self._over_memory()
        was_killed &= not (self.stopped_by or self.killed_itself or self.used_up_cpu)
        _kill_all(self.child.pid)
        self._reap_everything()
        for stream in self.streams:
            while stream.open and stream.read():
                pass
        head = {
            "returncode": self.returncode,
            "stopped_by": self.stopped_by,
            "killed_from_outside": was_killed,
        }
        stdout, stderr = (stream.text() for stream in self.streams)
        return json.dumps(head).encode(), stdout, stderr

    def _wait_for_something(self) -> None:
        poll = select.poll()
        poll.register(self.signal, select.POLLIN)
        poll.register(self.call, select.POLLRDHUP)
        if self.child.sigkills is not None:
            poll.register(self.child.sigkills, select.POLLIN)
        for stream in self.streams:
            if stream.open:
                poll.register(stream.fd, select.POLLIN)
        wait_s = min(_CHECK_EVERY_S, max(0.0, self.deadline - time.monotonic()))
        ready = dict(poll.poll(wait_s * 1000 + 1))
        for stream in self.streams:
            if stream.fd in ready:
                stream.read()
        listener = self.child.sigkills
        if listener is not None and (event := ready.get(listener)):
            if event & select.POLLIN:
                self.killed_itself = True
                with contextlib.suppress(FileNotFoundError):  # the sender has ended meanwhile
                    seccomp.let_continue(listener)
            else:  # hang-up: no process of the program is left
                self.child.sigkills = None
        if self.signal.fileno() in ready:
            self.signal.clear()
            self._reap()
        if self.call.fileno() in ready:
            self.stopped_by = ABANDONED
        self._check_limits()

    def _check_limits(self) -> None:
        if self.returncode is not None:
            return
        if time.monotonic() >= self.deadline:
            self.stopped_by = "timeout"
        elif sum(stream.num_bytes for stream in self.streams) > self.limits.flood_bytes:
            self.stopped_by = (
                f"OutputLimit: the program printed over {self.limits.flood_bytes} bytes."
            )
        elif time.monotonic() >= self.next_memory_check:
            # At fixed intervals, since a program that prints wakes the supervisor far more often.
            self.next_memory_check = time.monotonic() + _CHECK_EVERY_S
            if resident_bytes(self.child.pid) > self.limits.memory_bytes:
                self.stopped_by = self._over_memory()

    def _over_memory(self) -> str:
        return f"MemoryLimit: the program used over {self.limits.memory_bytes} bytes."

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                pid = ended.si_pid
                cpu_limit_s = math.inf
                if pid == self.child.pid and ended.si_status == signal.SIGKILL:
                    # Read before it is reaped: the program may have lowered the limit.
                    cpu_limit_s = _hard_cpu_limit_s(pid)
                _, status, used = os.wait4(pid, 0)
                if pid == self.child.pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
                    # The limit counts timer ticks, on a busy machine far more than the time used.
                    self.used_up_cpu = cpu_limit_s / 2 <= used.ru_utime + used.ru_stime

    def _reap_everything(self) -> None:
        """Reaps all children and adopted orphans. Outside a PID namespace each round may bring new
        ones."""
        with contextlib.suppress(ChildProcessError):
            while True:
                if os.getpid() != 1:
                    _kill_all(self.child.pid)
                pid, status = os.waitpid(-1, 0)
                if pid == self.child.pid and self.returncode is None:
                    self.returncode = os.waitstatus_to_exitcode(status)


def _hard_cpu_limit_s(pid: int) -> float:
    """Returns a process's limit from /proc: prlimit would need a privilege, since the process is in
    a user namespace."""
    limits = Path(f"/proc/{pid}/limits").read_text()
    hard = limits.partition("Max cpu time")[2].split()[1]
    return math.inf if hard == "unlimited" else float(hard)


def _kill_all(program_pid: int) -> None:
    # Without namespaces a process may escape by forking fast.
    with contextlib.suppress(ProcessLookupError):
        if os.getpid() == 1:
            os.kill(-1, signal.SIGKILL)  # all of this PID namespace except its first process
            return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program_pid, signal.SIGKILL)
    kill_descendants()


def resident_bytes(program_pid: int) -> int:
    """Returns the sum of the resident memory of the program's processes."""
    pids = list(descendants(os.getpid())) or [program_pid]
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return total
