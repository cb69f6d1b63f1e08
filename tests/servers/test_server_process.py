"""Server processes start, say what went wrong in one line, and leave nothing behind."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ajet.core.errors import ModelError
from ajet.core.inference.replica import ReplicaDown
from ajet.servers.process import Command, ServerProcess, free_port
from tests.processes import is_running, until_gone

SERVER = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
print("loading", flush=True)
time.sleep(600)
"""


def _server(tmp_path, code=SERVER, port=None):
    arguments = [sys.executable, "-S", "-c", code, str(tmp_path / "pids")]
    command = Command(arguments, port=port or free_port())
    return ServerProcess(command, name="r0", log_path=tmp_path / "logs" / "r0.log")


def _started(tmp_path):
    async def healthy():
        if not (tmp_path / "pids").exists() or not (tmp_path / "pids").read_text():
            raise ReplicaDown("not yet")

    return healthy


def _pids(tmp_path):
    return [int(pid) for pid in (tmp_path / "pids").read_text().split()]


async def test_a_server_and_all_that_it_started_are_gone_after_stop(tmp_path):
    server = _server(tmp_path)
    assert await server.start(_started(tmp_path), 20) < 20
    group = int(server.pid_path.read_text())
    pids = _pids(tmp_path)
    assert all(os.getpgid(pid) == group != os.getpgid(0) for pid in pids)
    await server.stop()
    assert not until_gone([group, *pids]) and not server.pid_path.exists() and not server.is_running


async def test_a_killed_server_is_seen_and_its_children_end(tmp_path):
    server = _server(tmp_path)
    await server.start(_started(tmp_path), 20)
    pids = _pids(tmp_path)
    os.kill(pids[0], signal.SIGKILL)
    assert not until_gone(pids)
    while server.is_running:
        await asyncio.sleep(0.02)
    with pytest.raises(ModelError, match=r"^inference server r0 ended with status 137: loading"):
        server.check_running()
    await server.stop()


async def test_a_server_whose_guard_is_killed_ends_when_somebody_looks(tmp_path):
    server = _server(tmp_path)
    await server.start(_started(tmp_path), 20)
    pids = _pids(tmp_path)
    os.kill(int(server.pid_path.read_text()), signal.SIGKILL)
    while server.is_running:
        await asyncio.sleep(0.02)
    assert not until_gone(pids)
    with pytest.raises(ModelError, match=r"^inference server r0 ended with status -9: loading"):
        server.check_running()
    await server.stop()


async def test_a_log_keeps_what_an_earlier_server_said_and_tells_of_its_own(tmp_path):
    for said in ("first", "second"):
        server = _server(tmp_path, f"import sys; sys.exit('{said}')")
        with pytest.raises(ModelError, match=rf"ended with status 1: {said} \(all"):
            await server.start(_started(tmp_path), 20)
    assert server.log_path.read_text() == "first\nsecond\n"


def test_nothing_outlives_a_run_that_is_killed(tmp_path):
    run = textwrap.dedent(f"""
        import asyncio, sys, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from test_server_process import _server, _started
        asyncio.run(_server(Path({str(tmp_path)!r})).start(_started(Path({str(tmp_path)!r})), 30))
        print("up", flush=True)
        time.sleep(600)
    """)
    run_process = subprocess.Popen([sys.executable, "-c", run], stdout=subprocess.PIPE)
    assert run_process.stdout.readline() == b"up\n"
    pids = [int((tmp_path / "logs" / "r0.pid").read_text()), *_pids(tmp_path)]
    assert all(map(is_running, pids))
    run_process.kill()
    run_process.wait()
    assert not until_gone(pids)


async def test_a_server_that_is_never_healthy_is_one_line_with_the_end_of_its_log(tmp_path):
    code = "import time\nfor n in range(9): print('line', n, flush=True)\ntime.sleep(600)"
    server = _server(tmp_path, code)

    async def never():
        raise ReplicaDown("no")

    with pytest.raises(ModelError) as caught:
        await server.start(never, 1.5)
    said = (
        "inference server r0 was not healthy after 1.5 s: line 6 | line 7 | line 8 (all of it in "
    )
    assert str(caught.value) == f"{said}{server.log_path})"
    assert not server.is_running


async def test_a_server_that_ends_at_once_is_one_line(tmp_path):
    server = _server(tmp_path, "import sys; sys.exit('no such model: tiny')")
    with pytest.raises(
        ModelError, match=r"^inference server r0 ended with status 1: no such model: tiny \(all"
    ):
        await server.start(_started(tmp_path), 20)
    missing = ServerProcess(
        Command(["/no/such/python"], port=free_port()), name="r1", log_path=tmp_path / "r1.log"
    )
    with pytest.raises(ModelError, match=r"status 127: /no/such/python: No such file"):
        await missing.start(_started(tmp_path), 20)


async def test_a_port_in_use_is_one_line_before_anything_starts(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = _server(tmp_path, port=port)
        with pytest.raises(ModelError) as caught:
            await server.start(_started(tmp_path), 20)
    said = f"inference server r0: port {port} of 127.0.0.1: Address already in use"
    assert str(caught.value) == said and not server.log_path.exists()


async def test_a_start_that_is_cancelled_leaves_nothing(tmp_path):
    server = _server(tmp_path)

    async def never():
        raise ReplicaDown("no")

    start = asyncio.create_task(server.start(never, 60))
    while not (tmp_path / "pids").exists() or len((tmp_path / "pids").read_text().split()) < 2:
        await asyncio.sleep(0.02)
    start.cancel()
    await asyncio.gather(start, return_exceptions=True)
    assert not until_gone(_pids(tmp_path))
