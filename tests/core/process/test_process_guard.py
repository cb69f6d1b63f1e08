"""A child process ends with its parent, however that ends, with all that the child started."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from ajet.core.process import process_guard
from ajet.core.process.process_guard import guarded
from tests.processes import is_running, until_gone

# It ignores its standard input and SIGTERM, and starts one child in its group and one that leaves.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleep = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
one, two = subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)
orphan = subprocess.run(["sh", "-c", "sleep 600 >/dev/null & echo $!"], stdout=subprocess.PIPE)
with open(sys.argv[1] + ".part", "w") as file:
    file.write(f"{os.getpid()} {one.pid} {two.pid} {int(orphan.stdout)}")
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""
PARENT = """
import subprocess, sys, threading, time
from ajet.core.process.process_guard import guarded
command = [sys.executable, "-S", "-c", sys.argv[1], sys.argv[2]]
def start():
    subprocess.Popen(guarded(command), stdin=subprocess.PIPE)
thread = threading.Thread(target=start)
thread.start()
thread.join()
print("started", flush=True)
time.sleep(600)
"""


def test_a_child_that_ignores_its_input_ends_with_a_killed_parent_and_all_below_it(tmp_path):
    with _parent(tmp_path) as (parent, pids):
        parent.kill()
        parent.wait()
        assert not until_gone(pids)


def test_a_child_outlives_the_thread_that_started_it(tmp_path):
    with _parent(tmp_path) as (_, pids):
        time.sleep(0.3)
        assert all(map(is_running, pids))


def test_a_child_is_ended_though_a_fork_of_its_parent_lives_on(tmp_path):
    forks = PARENT.replace('print("started"', 'import os\nif os.fork(): print("started"')
    with _parent(tmp_path, forks) as (parent, pids):
        parent.kill()
        parent.wait()
        assert not until_gone(pids)


@pytest.mark.parametrize("which", ["handle", "guard"])
def test_the_command_ends_when_one_of_its_guards_is_killed(tmp_path, which):
    handle = subprocess.Popen(guarded([sys.executable, "-S", "-c", STUBBORN, str(tmp_path / "p")]))
    pids = _pids(tmp_path / "p")
    guard = int(subprocess.check_output(["ps", "-o", "pid=", "--ppid", str(handle.pid)]))
    os.kill(handle.pid if which == "handle" else guard, signal.SIGKILL)
    in_other_session = set() if which == "handle" else {pids[2]}
    handle.wait()
    assert not until_gone(set(pids) - in_other_session)
    for pid in in_other_session & set(filter(is_running, pids)):
        os.kill(pid, signal.SIGKILL)


def test_a_child_that_is_terminated_has_its_grace_and_then_nothing_is_left(tmp_path):
    handle = subprocess.Popen(
        guarded([sys.executable, "-S", "-c", STUBBORN, str(tmp_path / "p")], grace_s=0.5)
    )
    pids = _pids(tmp_path / "p")
    handle.terminate()
    time.sleep(0.1)
    assert is_running(pids[0])
    assert handle.wait() == 128 + signal.SIGKILL
    assert not any(map(is_running, pids))


def test_processes_that_a_command_leaves_behind_end_with_it():
    code = "setsid sleep 600 >/dev/null & echo $!; exit 3"
    done = subprocess.run(guarded(["sh", "-c", code]), capture_output=True, text=True, check=False)
    assert done.returncode == 3 and not is_running(int(done.stdout))


BLIND = """
import os, subprocess, sys, time
from ajet.core.process import process_guard
listings = [[]] * 5
listed = process_guard.descendants
process_guard.descendants = lambda: listings.pop() if listings else listed()
child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
process_guard._end_descendants(child.pid, 0.0, statuses := [])
print(statuses)
"""


def test_a_process_that_listings_of_proc_have_missed_ends_too():
    ran = subprocess.run([sys.executable, "-c", BLIND], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("[9]\n", "")


def test_a_command_has_the_streams_the_status_and_the_signals_of_one_without_a_guard():
    code = "import signal, sys; print(sys.stdin.read(), signal.getsignal(signal.SIGPIPE))"
    ask = {"input": "hello", "capture_output": True, "text": True, "check": False}
    command = [sys.executable, "-S", "-c", code]
    done, plain = subprocess.run(guarded(command), **ask), subprocess.run(command, **ask)
    assert (done.returncode, done.stdout, done.stderr) == (0, plain.stdout, plain.stderr)
    killed = subprocess.run(guarded(["sh", "-c", "kill -9 $$"]), check=False)
    assert killed.returncode == 128 + signal.SIGKILL


def test_a_command_that_is_not_found_is_one_line():
    done = subprocess.run(guarded(["/no/such"]), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (127, "/no/such: No such file or directory\n")


def test_a_guard_whose_parent_is_gone_before_it_looks_starts_nothing_that_stays(tmp_path):
    command = guarded([sys.executable, "-S", "-c", STUBBORN, str(tmp_path / "p")])
    command[4] = "1"  # as if the parent had died and another process had adopted the guard
    assert subprocess.run(command, check=False).returncode != 0
    assert not (tmp_path / "p").exists() or not until_gone(_pids(tmp_path / "p"))


@contextlib.contextmanager
def _parent(tmp_path, code=PARENT):
    """Yields a parent in a process of its own, and all that its child is and has started."""
    stubborn, path = textwrap.dedent(STUBBORN), tmp_path / "p"
    parent = subprocess.Popen(
        [sys.executable, "-c", code, stubborn, str(path)],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert parent.stdout.readline() == b"started\n"
        yield parent, _pids(path)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


def _pids(path, within_s=30.0):
    deadline = time.monotonic() + within_s
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return [int(pid) for pid in path.read_text().split()]


UNDER_A_GUARD = {"loopback.py", "limiter.py", "sandboxed.py"}
"""Scripts that the sandbox runs behind a guard, which ends their children too."""
WHOLE_RUNS = {"sweep.py"}
"""Starts `ajet train` as a shell does, on every system: Ctrl-C must reach the run, and it saves a
checkpoint before it ends."""


def test_no_file_of_ajet_starts_a_child_without_a_guard():
    starts = ("subprocess.Popen(", "subprocess.run(", "create_subprocess", "StdioServerParameters(")
    for path in (Path(process_guard.__file__).parents[2]).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path == Path(process_guard.__file__) or path.name in UNDER_A_GUARD | WHOLE_RUNS:
            continue
        if any(start in text for start in starts):
            assert "import guarded" in text and "guarded(" in text, path
