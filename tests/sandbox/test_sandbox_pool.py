"""The pool: what a program's result looks like, and the life and death of its processes."""

import asyncio
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from ajet.core.errors import EnvironmentFault
from ajet.sandbox import landlock, zygote
from ajet.sandbox.pool import Outcome, SandboxError, SandboxPool, default_pool
from ajet.tools import execute_python_code
from tests.processes import below

# Without bubblewrap, whose own process stands between this one and the zygote.
MODES = (zygote.NAMESPACES, zygote.RLIMITS)
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pool() -> Iterator[SandboxPool]:
    made = SandboxPool(modes=MODES, num_ready=2)
    yield made
    made.close()


@pytest.fixture(params=MODES)
def mode_pool(request: pytest.FixtureRequest) -> Iterator[SandboxPool]:
    made = SandboxPool(modes=[request.param], num_ready=2)
    try:
        made.start()
    except SandboxError as error:
        pytest.skip(f"this machine has no such mode: {error}")
    yield made
    made.close()


def run(pool: SandboxPool, code: str, timeout: float = 20) -> Outcome:
    return asyncio.run(pool.run(code, timeout))


def test_the_result_says_code_output_and_error(pool: SandboxPool) -> None:
    assert run(pool, "print(1 + 2)") == Outcome(0, "3\n", "")
    assert run(pool, "import sys\nsys.exit(3)") == Outcome(3, "", "")
    assert run(pool, "raise SystemExit('no')") == Outcome(1, "", "no\n")
    assert run(pool, "import os\nos.kill(os.getpid(), 11)").returncode == -11
    assert run(pool, "") == Outcome(0, "", "")


def test_a_traceback_is_the_same_in_every_run_and_hides_the_sandbox(pool: SandboxPool) -> None:
    expected = (
        "Traceback (most recent call last):\n"
        '  File "/tmp/program.py", line 2, in <module>\n'
        "    x = 1 / 0\n"
        "        ~~^~~\n"
        "ZeroDivisionError: division by zero\n"
    )
    assert [run(pool, "# one\nx = 1 / 0").stderr for _ in range(3)] == [expected] * 3


def test_a_syntax_error_is_the_programs_result(pool: SandboxPool) -> None:
    outcome = run(pool, "print(1\nprint(2)")
    assert (outcome.returncode, outcome.stdout) == (1, "")
    assert "SyntaxError: '(' was never closed" in outcome.stderr


@pytest.mark.parametrize("code", ["\0", "x = '\ud800'", "print('\ud800')"])
def test_text_that_is_no_program_is_an_error_of_the_program(pool: SandboxPool, code: str) -> None:
    assert run(pool, code).returncode == 1


def test_sets_of_strings_print_in_the_same_order_each_time(pool: SandboxPool) -> None:
    code = "print({'a', 'b', 'c', 'd', 'e', 'f'}, hash('x'))"
    first = run(pool, code).stdout
    pool.close()
    assert run(pool, code).stdout == first


def test_random_numbers_are_the_programs_own_and_the_same_each_time(mode_pool: SandboxPool) -> None:
    code = "import random\nprint(random.random(), random.sample(range(100), 5))"
    first = run(mode_pool, code).stdout
    assert run(mode_pool, code).stdout == first
    assert run(mode_pool, code + "  # another program").stdout != first
    mode_pool.close()
    assert run(mode_pool, code).stdout == first


def test_bytes_that_are_not_utf8_are_replaced(pool: SandboxPool) -> None:
    outcome = run(pool, "import os\nos.write(1, b'a\\xff\\xfeb')\nprint('é')")
    assert outcome.stdout == "a��bé\n"


def test_input_is_at_its_end_and_the_environment_is_empty(pool: SandboxPool) -> None:
    os.environ["AJET_TEST_SECRET"] = "hunter2"
    try:
        outcome = run(pool, "import os\nprint('AJET_TEST_SECRET' in os.environ)\ninput()")
    finally:
        del os.environ["AJET_TEST_SECRET"]
    assert outcome.stdout == "False\n"
    assert outcome.stderr.endswith("EOFError: EOF when reading a line\n")


def test_exit_functions_and_threads_finish_as_in_a_script(pool: SandboxPool) -> None:
    code = """
import atexit, threading, time
atexit.register(print, "last")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
print(__name__, __file__)
"""
    assert run(pool, code).stdout == "__main__ /tmp/program.py\nthread\nlast\n"


def test_installed_packages_can_be_imported(pool: SandboxPool) -> None:
    if not Path(sysconfig.get_path("purelib"), "numpy").exists():
        pytest.skip("numpy is not installed beside this interpreter")
    assert run(pool, "import numpy\nprint(numpy.arange(3).sum())").stdout == "3\n"


def test_packages_of_a_venv_that_is_a_link_can_be_imported(
    mode_pool: SandboxPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode = mode_pool.start().mode
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)  # where root starts programs as another user, that one reads it
        (Path(name) / "real").mkdir()
        (Path(name) / "real" / "only_here.py").write_text("x = 3")
        (Path(name) / "link").symlink_to(Path(name) / "real")
        monkeypatch.setattr(sysconfig, "get_path", lambda _: f"{name}/link")
        linked = SandboxPool(modes=[mode], num_ready=1)
        assert run(linked, "import only_here\nprint(only_here.x)") == Outcome(0, "3\n", "")
        linked.close()


def test_calls_run_side_by_side_and_do_not_block_the_loop(pool: SandboxPool) -> None:
    async def main() -> tuple[list[Outcome], int]:
        ticks = 0
        calls = asyncio.gather(
            *(pool.run(f"import time\ntime.sleep(0.5)\nprint({i})", 20) for i in range(8))
        )
        while not calls.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return await calls, ticks

    start = time.monotonic()
    outcomes, ticks = asyncio.run(main())
    assert [outcome.stdout for outcome in outcomes] == [f"{i}\n" for i in range(8)]
    assert time.monotonic() - start < 3  # 4 s one after the other
    assert ticks > 10


def test_more_calls_than_workers_wait_their_turn() -> None:
    pool = SandboxPool(num_ready=1, num_running=2)

    async def main() -> list[Outcome]:
        return await asyncio.gather(*(pool.run(f"print({i})", 20) for i in range(20)))

    assert [outcome.stdout for outcome in asyncio.run(main())] == [f"{i}\n" for i in range(20)]
    pool.close()


def test_threads_with_loops_of_their_own_share_the_pool(pool: SandboxPool) -> None:
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda i=i: answers.append(run(pool, f"print({i})").stdout))
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == ["0\n", "1\n", "2\n", "3\n"]


def test_a_cancelled_call_stops_its_program(pool: SandboxPool) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pool.run("import time\ntime.sleep(1000)", 1000), 0.3)

    asyncio.run(main())
    deadline = time.monotonic() + 5
    while len(processes_below(pool)) > 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(processes_below(pool)) <= 4


def test_a_dead_zygote_is_replaced_at_the_next_call(pool: SandboxPool) -> None:
    running = pool.start()
    os.kill(zygote_of(pool), signal.SIGKILL)
    running.process.wait()
    assert run(pool, "print(1)").stdout == "1\n"


@pytest.mark.parametrize("victim", ["supervisor", "program"])
def test_a_program_killed_from_outside_runs_once_more(mode_pool: SandboxPool, victim: str) -> None:
    async def main() -> Outcome:
        call = asyncio.create_task(mode_pool.run("import time\ntime.sleep(1)\nprint(7)", 60))
        await asyncio.sleep(0.5)
        for pid in processes_below(mode_pool):
            process = psutil.Process(pid)
            if process.ppid() != zygote_of(mode_pool) and process.num_fds() == 3:  # it has begun
                os.kill(pid if victim == "program" else process.ppid(), signal.SIGKILL)
        return await call

    run(mode_pool, "pass")
    time.sleep(0.5)
    assert asyncio.run(main()) == Outcome(0, "7\n", "")


def test_a_program_killed_again_is_a_fault_of_the_environment_and_leaves_no_daemon(
    mode_pool: SandboxPool,
) -> None:
    daemon = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            time.sleep(0.01)
    os._exit(0)
time.sleep(1000)
"""

    async def main() -> None:
        call = asyncio.create_task(mode_pool.run(daemon, 1000))
        while not call.done():
            await asyncio.sleep(0.3)
            for worker in psutil.Process(zygote_of(mode_pool)).children():
                if len(below(worker.pid)) > 1:  # it has taken the call
                    worker.kill()
        await call

    mode_pool.start()
    with pytest.raises(EnvironmentFault, match="killed 2 times"):
        asyncio.run(main())
    assert run(mode_pool, "print(1)").stdout == "1\n"
    deadline = time.monotonic() + 10
    while len(processes_below(mode_pool)) > 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(processes_below(mode_pool)) <= 4  # two ready workers and their programs


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.kill(os.getpid(), 9)",
        "import os\nos.killpg(0, 9)",
        "import os, time\nif os.fork() == 0: os.kill(os.getppid(), 9)\ntime.sleep(10)",
        "import os, signal\nsignal.pidfd_send_signal(os.pidfd_open(os.getpid()), 9)",
        "import signal, threading\nsignal.pthread_kill(threading.main_thread().ident, 9)",
        "import resource, signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass",
    ],
    ids=["itself", "its group", "a child", "by descriptor", "its thread", "its own CPU limit"],
)
def test_a_program_that_kills_itself_gets_that_as_its_result(
    mode_pool: SandboxPool, code: str
) -> None:
    assert run(mode_pool, code) == Outcome(-9, "", "")


def test_closing_leaves_no_process_and_no_zombie() -> None:
    pool = SandboxPool(modes=MODES, num_ready=2)
    run(pool, "print(1)")
    pids = [pool.start().process.pid, *below(pool.start().process.pid)]
    pool.close()
    assert not [pid for pid in pids if wait_until_gone(pid)]


def test_nothing_outlives_a_parent_that_is_killed() -> None:
    code = """
import asyncio, sys, time
from ajet.sandbox.pool import SandboxPool
pool = SandboxPool(num_ready=2)
print(pool.start().process.pid, flush=True)
asyncio.run(pool.run("import time\\nwhile True: time.sleep(1)", 1000))
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    assert parent.stdout is not None
    zygote_pid = int(parent.stdout.readline())
    time.sleep(1)
    pids = [zygote_pid, *below(zygote_pid)]
    assert len(pids) > 2
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert not [pid for pid in pids if wait_until_gone(pid)]


def test_workers_are_small(pool: SandboxPool) -> None:
    status = Path(f"/proc/{pool.start().process.pid}/status").read_text()
    (rss_kb,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    assert rss_kb < 40_000


def test_a_user_without_privileges_gets_a_sandbox_too() -> None:
    code = f"""
pool = SandboxPool(num_ready=2)
print(run("print(1+2)").stdout.strip(), run(f"open({str(REPOSITORY)!r})").returncode)
print(run("import os, socket; os.kill({os.getpid()}, 9)").returncode)
print(run("import os\\nwhile True: os.fork()").returncode != 0, run("print(3)").stdout.strip())
print(run("import socket; socket.create_connection(('127.0.0.1', 1))").returncode)
"""
    assert run_as_nobody(code) == ["3 1", "1", "True 3", "1"]


def test_a_program_of_the_same_user_cannot_limit_or_slow_the_trainer() -> None:
    code = """
import resource
pool = SandboxPool(num_ready=2, modes=["rlimits"])
priority = os.getpriority(os.PRIO_PROCESS, 0)
before = [resource.getrlimit(limit) for limit in (resource.RLIMIT_CPU, resource.RLIMIT_NOFILE)]
print(run('''
import os, resource
for pid in (%d, os.getppid()):
    for call in (
        lambda: resource.prlimit(pid, resource.RLIMIT_CPU, (1, 1)),
        lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, 0)),
        lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
        lambda: os.setpriority(os.PRIO_USER, 0, 19),
        lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)),
        lambda: os.sched_setaffinity(pid, {0}),
    ):
        try:
            call()
            print("accepted")
        except PermissionError:
            pass
''' % os.getpid()))
after = [resource.getrlimit(limit) for limit in (resource.RLIMIT_CPU, resource.RLIMIT_NOFILE)]
print(after == before, os.getpriority(os.PRIO_PROCESS, 0) == priority)
"""
    assert run_as_nobody(code) == ["Outcome(returncode=0, stdout='', stderr='')", "True True"]


def run_as_nobody(code: str) -> list[str]:
    """Runs code as an ordinary user, with a `run` that uses its `pool`; returns its lines."""
    if os.geteuid() != 0:
        pytest.skip("this whole run is without privileges")
    start = f"""
import asyncio, os, sys
assert sys.version_info >= (3, 11), "too old"
sys.path.insert(0, {str(REPOSITORY)!r})
from ajet.sandbox.pool import SandboxPool
def run(code): return asyncio.run(pool.run(code, 5))
"""
    try:
        done = subprocess.run(
            ["/usr/bin/python3", "-c", f"{start}{code}pool.close()"],
            user=65534, group=65534, extra_groups=[], cwd="/",
            env={}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("no interpreter that another user can read")
    if "too old" in done.stderr or "No module named 'ajet'" in done.stderr:
        pytest.skip("the system's interpreter cannot import ajet as another user")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("abi", "held", "not_held"),
    [
        (1, {"reads", "writes"}, {"truncation", "signals"}),
        (2, {"reads", "writes"}, {"truncation", "signals"}),
        (3, {"reads", "writes", "truncation"}, {"signals"}),
        (5, {"reads", "writes", "truncation"}, {"signals"}),
        (6, {"reads", "writes", "truncation", "signals"}, set()),
        (7, {"reads", "writes", "truncation", "signals"}, set()),
    ],
)
def test_the_report_promises_what_this_version_of_landlock_does(
    abi: int, held: set[str], not_held: set[str]
) -> None:
    promised, _, open_to_programs = landlock.describe(abi).partition("NOT")
    assert {word for word in held | not_held if word in promised} == held
    assert {word for word in held | not_held if word in open_to_programs} == not_held


async def test_the_tool_answers_in_the_form_of_agentscope() -> None:
    response = await execute_python_code("print(1 + 2)", timeout=10)
    assert response.content[0]["text"] == (
        "<returncode>0</returncode><stdout>3\n</stdout><stderr></stderr>"
    )
    assert default_pool().report().startswith("sandbox: ")


def processes_below(pool: SandboxPool) -> list[int]:
    """The workers and programs."""
    return sorted(below(zygote_of(pool)))


def zygote_of(pool: SandboxPool) -> int:
    """The process below the two of its guard."""
    return _only_child(_only_child(pool.start().process.pid))


def _only_child(pid: int) -> int:
    (child,) = psutil.Process(pid).children()
    return child.pid


def wait_until_gone(pid: int) -> bool:
    """True if the process is still there after a while."""
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    ("timeout", "ran"),
    [("10", True), (float("nan"), False), (float("inf"), False), (-1, False), ([], False)],
)
async def test_a_timeout_as_a_model_may_write_it_runs_or_is_answered(timeout, ran):
    response = await execute_python_code("print(1 + 2)", timeout=timeout)
    text = response.content[0]["text"]
    assert ("<stdout>3\n</stdout>" in text) is ran
    assert ("is not a positive number of seconds" in text) is not ran


@pytest.mark.parametrize("has_groups", [False, True])
def test_nothing_is_kept_of_a_worker_that_has_ended(monkeypatch, has_groups):
    kept = zygote.Zygote.__new__(zygote.Zygote)
    kept.namespaces, kept.ready, kept.running, kept.group_of = False, set(), set(), {}
    kept.confinement = SimpleNamespace(has_own_user=True)
    removed = []
    made = iter(["g0", "g1", "g2"])
    groups = SimpleNamespace(make=lambda: next(made), remove=lambda *names: removed.extend(names))
    kept.groups, kept.group_of_next = (groups if has_groups else None), ""
    pids = iter([101, 102, 103])
    no_calls = {"O_CLOEXEC": 0, "close": id, "write": lambda *_: 3, "pipe2": lambda flags: (8, 9)}
    monkeypatch.setattr(zygote, "os", SimpleNamespace(fork=lambda: next(pids), **no_calls))
    for _ in range(3):
        kept._fork_worker()
    kept.forget({101, 103})
    assert kept.ready == {102}
    assert kept.group_of == ({102: "g1"} if has_groups else {})
    assert sorted(removed) == (["g0", "g2"] if has_groups else [])
