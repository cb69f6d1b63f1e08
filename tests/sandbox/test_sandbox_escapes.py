"""What programs try in order to get out, or to take the machine down, in each mode."""

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ajet.sandbox import landlock, seccomp, zygote
from ajet.sandbox.limits import MIB, Limits
from ajet.sandbox.pool import MODES, Outcome, SandboxError, SandboxPool

LIMITS = Limits(memory_bytes=256 * MIB, cpu_s=2, num_processes=20, scratch_bytes=8 * MIB)
REPOSITORY = Path(__file__).resolve().parents[2]


class Sandbox:
    """A pool in one mode, called synchronously: every call has an event loop of its own."""

    def __init__(self, pool: SandboxPool, mode: str) -> None:
        self.pool, self.mode = pool, mode

    def run(self, code: str, timeout: float = 20) -> Outcome:
        return asyncio.run(self.pool.run(code, timeout))

    def needs_namespaces(self) -> None:
        if self.mode == zygote.RLIMITS:
            pytest.skip("only namespaces confine this")

    def needs_seccomp(self) -> None:
        if not seccomp.is_available():
            pytest.skip("no seccomp filter for this kernel or architecture")

    def needs_landlock(self) -> None:
        if self.mode == zygote.RLIMITS and not landlock.version():
            pytest.skip("neither namespaces nor Landlock here")


@pytest.fixture(scope="module", params=MODES)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    pool = SandboxPool(LIMITS, modes=[request.param], num_ready=2)
    try:
        pool.start()
    except SandboxError as error:
        pytest.skip(f"this machine has no such mode: {error}")
    yield Sandbox(pool, request.param)
    pool.close()


def test_a_fork_bomb_runs_into_its_limit_and_leaves_nothing(sandbox: Sandbox) -> None:
    bomb = "import os\nwhile True:\n    os.fork()"
    assert sandbox.run(bomb, timeout=2).returncode != 0
    assert sandbox.run("print('still here')").stdout == "still here\n"


def test_a_program_may_have_some_processes_but_not_many(sandbox: Sandbox) -> None:
    code = """
import os, time
children = 0
try:
    while children < 200:
        if os.fork() == 0:
            time.sleep(60)
        children += 1
except OSError as error:
    print(children < 60, error.errno == 11)
"""
    assert sandbox.run(code).stdout == "True True\n"


def test_the_processes_of_one_program_are_not_counted_for_another(sandbox: Sandbox) -> None:
    if sandbox.mode == zygote.RLIMITS and os.geteuid() != 0:
        pytest.skip("only root has other users, and without namespaces the kernel counts per user")
    code = """
import os, time
for _ in range(15):
    if os.fork() == 0:
        time.sleep(60)
time.sleep(1)  # until the others have theirs too
print("done")
"""

    async def three_at_once() -> list[Outcome]:
        return await asyncio.gather(*(sandbox.pool.run(code, 20) for _ in range(3)))

    assert asyncio.run(three_at_once()) == [Outcome(0, "done\n", "")] * 3


def test_a_listener_of_the_host_cannot_be_reached(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        code = (
            f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)\nprint('reached')"
        )
        outcome = sandbox.run(code)
    assert outcome.returncode == 1
    assert "reached" not in outcome.stdout


def test_sockets_of_the_host_in_the_file_tree_cannot_be_reached(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        code = f"import socket\nsocket.socket(socket.AF_UNIX).connect({path!r})\nprint('reached')"
        assert sandbox.run(code).stdout == ""


@pytest.mark.parametrize("kind", ["SOCK_DGRAM", "SOCK_RAW"])
def test_no_datagram_reaches_a_socket_of_the_host(sandbox: Sandbox, kind: str) -> None:
    sandbox.needs_seccomp()
    code = """
import socket
for make in (socket.socket, lambda *kind: socket.socketpair(*kind)[0]):
    try:
        make(socket.AF_UNIX, socket.%s).sendto(b"reached", %r)
    except OSError:
        pass
"""
    with (
        tempfile.TemporaryDirectory() as folder,  # other users may not pass through tmp_path
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener,
    ):
        path = Path(folder, "s")
        listener.bind(str(path))
        listener.setblocking(False)
        Path(folder).chmod(0o755)
        path.chmod(0o777)
        assert sandbox.run(code % (kind, str(path))).returncode == 0
        with pytest.raises(BlockingIOError):
            listener.recv(100)


def test_stream_sockets_between_the_programs_own_processes_work(sandbox: Sandbox) -> None:
    code = """
import asyncio, socket
a, b = socket.socketpair()
a.sendall(b"x")
print(b.recv(1), asyncio.run(asyncio.sleep(0, "loop")))
"""
    assert sandbox.run(code).stdout == "b'x' loop\n"


def test_files_of_the_host_cannot_be_read(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.needs_landlock()
    secret = tmp_path / "secret.txt"
    secret.write_text("token")
    secret.chmod(0o644)
    for path in (secret, Path(__file__), Path("/etc/passwd")):
        assert sandbox.run(f"print(open({str(path)!r}).read())").returncode == 1


def test_the_home_folder_shows_no_files(sandbox: Sandbox) -> None:
    sandbox.needs_landlock()
    code = """
import os
for home in %r:
    try:
        for name in os.listdir(home):
            path = os.path.join(home, name)
            if os.path.isfile(path):
                open(path).read(1)
                print("read", path)
    except OSError:
        pass
"""
    assert sandbox.run(code % [str(Path.home()), "/root", "/home"]).stdout == ""


def test_processes_of_the_host_are_not_in_proc(sandbox: Sandbox) -> None:
    sandbox.needs_landlock()
    code = """
import os
try:
    print(len([name for name in os.listdir("/proc") if name.isdigit()]))
except PermissionError:
    print(2)
"""
    assert sandbox.run(code).stdout == "2\n"  # the supervisor and the program
    assert sandbox.run(f"print(open('/proc/{os.getpid()}/environ').read())").returncode == 1
    assert sandbox.run("open('/proc/1/mem', 'rb')").returncode == 1


def test_nothing_in_proc_can_be_written(sandbox: Sandbox) -> None:
    sandbox.needs_landlock()
    code = """
import os
paths = ["/proc/self/comm", "/proc/self/oom_score_adj", "/proc/sysrq-trigger"]
for folder in ("/proc/sys", "/proc/irq", "/proc/bus"):
    paths += [os.path.join(each, name) for each, _, names in os.walk(folder) for name in names]
for path in paths:
    try:
        os.close(os.open(path, os.O_WRONLY))
        print("writable:", path)
    except OSError:
        pass
"""
    assert sandbox.run(code) == Outcome(0, "", "")


def test_root_that_cannot_become_nobody_gets_no_strong_sandbox(tmp_path: Path) -> None:
    """An interpreter installed under umask 077: nobody cannot read its standard library."""
    if os.geteuid() != 0:
        pytest.skip("only root becomes nobody")
    python = _private_interpreter(tmp_path)
    code = f"""
import asyncio, sys
sys.path.insert(0, {str(REPOSITORY)!r})
from ajet.sandbox.pool import SandboxError, SandboxPool
pool = SandboxPool(num_ready=1)
try:
    print(pool.report())
    program = "import os; print(os.getuid() >= 65534); open('/proc/sys/kernel/core_pattern', 'w')"
    print(asyncio.run(pool.run(program, 10)))
except SandboxError as error:
    print(error)
"""
    done = subprocess.run(
        [python, "-c", code], env={}, capture_output=True, text=True, timeout=60, check=False
    )
    report, outcome = done.stdout.splitlines()
    assert "namespaces: programs would run as root" in report, done.stdout + done.stderr
    assert outcome.startswith("Outcome(returncode=1, stdout='True\\n'"), outcome


def test_root_that_may_not_change_its_user_runs_no_program() -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv, which takes a right away from it")
    code = """
from ajet.sandbox.pool import SandboxError, SandboxPool
try:
    print(SandboxPool(num_ready=1).report())
except SandboxError as error:
    print(error)
"""
    done = subprocess.run(
        ["setpriv", "--bounding-set=-setuid", sys.executable, "-c", code],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("no sandbox: "), done.stdout + done.stderr
    assert done.stdout.count("programs would run as root") == len(MODES)


def _private_interpreter(folder: Path) -> str:
    """The running interpreter and its standard library once more, for their owner alone."""
    library = Path(sysconfig.get_path("stdlib"))
    skip = shutil.ignore_patterns("test", "tests", "site-packages", "dist-packages", "config-*")
    copy = folder / library.relative_to(sys.base_prefix)
    shutil.copytree(library, copy, ignore=skip, copy_function=_link_or_copy)
    copy.chmod(0o700)
    python = folder / "bin" / Path(os.path.realpath(sys.executable)).name
    python.parent.mkdir()
    _link_or_copy(os.path.realpath(sys.executable), str(python))
    return str(python)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(os.path.realpath(source), target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def test_the_parent_cannot_be_killed(sandbox: Sandbox) -> None:
    if sandbox.mode == zygote.RLIMITS and landlock.version() < 6:
        pytest.skip("signals are confined by Linux 6.12 and newer only")
    for pid in (os.getpid(), os.getppid(), 1):
        sandbox.run(f"import os, signal\nos.kill({pid}, signal.SIGKILL)")
    assert sandbox.run("print(1)").stdout == "1\n"


def test_limits_and_priorities_are_set_for_the_program_alone(sandbox: Sandbox) -> None:
    sandbox.needs_seccomp()
    code = """
import os, resource
def is_allowed(call, *arguments):
    try:
        call(*arguments)
    except PermissionError:
        return False
    return True
for pid in (0, os.getpid(), os.getppid(), 1):
    print(
        is_allowed(resource.prlimit, pid, resource.RLIMIT_CORE, (0, 0)),
        is_allowed(os.sched_setaffinity, pid, os.sched_getaffinity(0)),
        is_allowed(os.sched_setscheduler, pid, os.SCHED_BATCH, os.sched_param(0)),
        is_allowed(os.sched_setparam, pid, os.sched_param(0)),
        is_allowed(os.setpriority, os.PRIO_PROCESS, pid, 19),
    )
"""
    allowed, refused = "True True True True True\n", "False False False False False\n"
    assert sandbox.run(code).stdout == 2 * allowed + 2 * refused


def test_nothing_can_be_written_outside_the_scratch_folder(sandbox: Sandbox) -> None:
    sandbox.needs_landlock()
    code = """
for path in ("/usr/ajet-escape", "/etc/ajet-escape", "/ajet-escape", "/dev/ajet-escape", %r):
    try:
        open(path, "w")
        print("wrote", path)
    except OSError:
        pass
open("inside.txt", "w").write("fine")
print(open("inside.txt").read())
"""
    outside = str(Path(__file__).with_name("ajet-escape"))
    assert sandbox.run(code % outside).stdout == "fine\n"


def test_a_file_cannot_fill_the_disk(sandbox: Sandbox) -> None:
    code = """
with open("big", "wb", buffering=0) as file:
    for _ in range(100):
        file.write(bytes(1 << 20))
"""
    outcome = sandbox.run(code)
    assert outcome.returncode == 1
    assert "OSError" in outcome.stderr


def test_many_files_cannot_fill_the_disk(sandbox: Sandbox) -> None:
    sandbox.needs_namespaces()
    code = "for i in range(100):\n    open(f'f{i}', 'wb', buffering=0).write(bytes(1 << 20))"
    assert "No space left" in sandbox.run(code).stderr


def test_fifty_megabytes_of_output_arrive_shortened_and_marked(sandbox: Sandbox) -> None:
    outcome = sandbox.run("for _ in range(50):\n    print('x' * (1 << 20))\nprint('the end')")
    assert outcome.returncode == 0
    assert len(outcome.stdout) < 70_000
    assert "bytes of output left out" in outcome.stdout
    assert outcome.stdout.endswith("the end\n")


def test_sleeping_for_ever_ends_at_the_timeout_as_in_agentscope(sandbox: Sandbox) -> None:
    start = time.monotonic()
    outcome = sandbox.run("print('a', end='')\nimport time\ntime.sleep(1000)", timeout=0.5)
    assert time.monotonic() - start < 5
    note = "TimeoutError: The code execution exceeded the timeout of 0.5 seconds."
    assert outcome == Outcome(-1, "a", note)


def test_a_program_that_ignores_signals_ends_at_the_timeout_too(sandbox: Sandbox) -> None:
    code = """
import signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print("late", file=sys.stderr)
time.sleep(1000)
"""
    outcome = sandbox.run(code, timeout=0.5)
    assert outcome.returncode == -1
    assert outcome.stderr.startswith("late\n\nTimeoutError")


def test_one_process_cannot_take_more_memory_than_its_limit(sandbox: Sandbox) -> None:
    outcome = sandbox.run("x = bytearray(400 << 20)")
    assert (outcome.returncode, outcome.stderr.splitlines()[-1]) == (1, "MemoryError")


def test_many_processes_cannot_take_more_memory_than_the_limit_together(sandbox: Sandbox) -> None:
    code = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        block = bytearray(100 << 20)
        time.sleep(60)
time.sleep(60)
"""
    outcome = sandbox.run(code)
    assert outcome.returncode == -9
    assert "MemoryLimit" in outcome.stderr


def test_printing_all_the_while_does_not_hide_memory(sandbox: Sandbox) -> None:
    code = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        block = bytearray(100 << 20)
        time.sleep(60)
for _ in range(400):
    print(".", flush=True)
    time.sleep(0.03)
"""
    outcome = sandbox.run(code)
    assert outcome.returncode == -9
    assert "MemoryLimit" in outcome.stderr


def test_memory_that_no_process_maps_is_refused(sandbox: Sandbox) -> None:
    sandbox.needs_seccomp()
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for call in (
    lambda: libc.shmget(0, 1 << 20, 0o1600),
    lambda: libc.msgget(0, 0o1600),
    lambda: libc.semget(0, 1, 0o1600),
    lambda: libc.memfd_create(b"x", 0),
    lambda: libc.syscall(447, 0),  # memfd_secret
):
    print(call(), ctypes.get_errno())
"""
    assert sandbox.run(code).stdout == f"-1 {errno.EPERM}\n" * 5


def test_the_standard_library_shares_memory_without_the_refused_calls(sandbox: Sandbox) -> None:
    code = """
import ctypes, mmap, multiprocessing, os
compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda x: x + 1)
block = mmap.mmap(-1, 4096)
if os.fork() == 0:
    block[0] = compare(6)
    os._exit(0)
os.wait()
ours, theirs = multiprocessing.Pipe()
child = multiprocessing.get_context("fork").Process(target=theirs.send, args=(5,))
child.start()
print(block[0], ours.recv())
child.join()
"""
    assert sandbox.run(code) == Outcome(0, "7 5\n", "")


def test_named_shared_memory_lies_in_the_scratch_folder(sandbox: Sandbox) -> None:
    sandbox.needs_namespaces()
    code = """
from multiprocessing import Array, Lock, shared_memory
block = shared_memory.SharedMemory(create=True, size=4096)
with Lock():
    block.buf[0] = 7
    print(block.buf[0], list(Array("i", 3)))
block.close()
block.unlink()
"""
    assert sandbox.run(code).stdout == "7 [0, 0, 0]\n"


def test_cpu_time_is_limited(sandbox: Sandbox) -> None:
    assert sandbox.run("while True: pass", timeout=60).returncode == -signal.SIGXCPU


def test_a_daemon_does_not_outlive_its_program(sandbox: Sandbox, tmp_path: Path) -> None:
    daemon = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            time.sleep(0.01)
    os._exit(0)
os.wait()
print("done")
"""
    marker = f"# {tmp_path.name}-{sandbox.mode}"

    assert sandbox.run(daemon + marker) == Outcome(0, "done\n", "")
    deadline = time.monotonic() + 60
    while _num_python_children_of(sandbox) > 2 * 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _num_python_children_of(sandbox) <= 2 * 2  # the ready workers and their programs


def test_no_privilege_can_be_won_back(sandbox: Sandbox) -> None:
    code = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for flags in (0x10000000, 0x20000, 0x40000000):
    print(libc.unshare(flags))
print(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None), libc.ptrace(16, 1, 0, 0))
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")])
"""
    sandbox.needs_namespaces()
    assert sandbox.run(code).stdout == "-1\n-1\n-1\n-1 -1\n['0000000000000000']\n"


def test_nothing_is_left_between_two_programs(sandbox: Sandbox) -> None:
    sandbox.run(
        "import builtins, math, os\nmath.pi = 3\nbuiltins.leak = 1\nos.environ['LEAK'] = '1'"
    )
    sandbox.run("open('leak.txt', 'w').write('1')")
    code = "import math, os\nprint(math.pi, os.environ.get('LEAK'), 'leak' in dir(__builtins__))\n"
    code += "print(os.path.exists('leak.txt'))"
    assert sandbox.run(code).stdout == "3.141592653589793 None False\nFalse\n"


def _num_python_children_of(sandbox: Sandbox) -> int:
    """Processes below the zygote, which has two guards, as the host sees them."""
    found = [sandbox.pool.start().process.pid]
    for pid in found:
        for thread in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                found += map(int, thread.read_text().split())
    return len(found) - 3
