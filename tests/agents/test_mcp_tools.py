"""Tools of MCP servers: real servers, in processes of their own, over stdio and HTTP."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time

import pytest

from ajet import Task, WorkflowTask
from ajet.core.errors import ConfigError, EnvironmentFault
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.tools import mcp_session
from ajet.tools.mcp_session import McpAddress
from ajet.tools.toolbox import load_toolbox
from tests.agents.agent_runs import call, config_in, run, texts
from tests.processes import is_running, until_gone

SERVER = """
import os
import sys
from pathlib import Path

import anyio

from mcp.server.fastmcp import Context, FastMCP
from mcp.types import ImageContent, TextContent

port = int(sys.argv[2]) if len(sys.argv) > 2 else 8000
Path("server.pid").write_text(str(os.getpid()))
server = FastMCP("test", host="127.0.0.1", port=port, log_level="ERROR")


@server.tool()
def add(a: int, b: int) -> str:
    "Adds two numbers."
    return str(a + b)


@server.tool()
def pid() -> str:
    return str(os.getpid())


@server.tool()
def die() -> str:
    os._exit(1)


@server.tool()
def refuse() -> str:
    raise ValueError("not today")


@server.tool()
async def hang() -> str:
    await anyio.sleep(3600)


@server.tool()
def picture() -> list:
    image = ImageContent(type="image", data="", mimeType="image/png")
    return [TextContent(type="text", text="a cat"), image]


@server.tool()
def token(context: Context) -> str:
    return context.request_context.request.headers["authorization"]


server.run(sys.argv[1] if len(sys.argv) > 1 else "stdio")
"""
STDIO = {"command": "python", "args": ["server.py"]}


@pytest.fixture
def config(tmp_path):
    def make(server, entry=None, **settings):
        listed = {"tools": [{"mcp": server, **(entry or {})}]}
        files = {"server.py": SERVER, "tools.yaml": json.dumps(listed)}
        return config_in(tmp_path, files, tool_config_path="tools.yaml", **settings)

    yield make
    mcp_session.close_all()


def is_gone(pid):
    return not until_gone([int(pid)], within_s=5)


async def test_each_episode_has_a_server_of_its_own_that_is_gone_at_the_end(config):
    asked = call("add", a=2, b=3) + call("pid") + call("refuse") + call("picture")
    made = config(STDIO, {"tools": ["add", "pid", "refuse", "picture"]})
    one, two = await run(made, asked, "done", num=2)
    answers = [texts(one), texts(two)]
    assert [each[0] for each in answers] == ["5", "5"]
    assert answers[0][2] == "Error executing tool refuse: not today"
    assert answers[0][3] == "a cat\n(image left out: only text can be read)"
    assert one.output.log_metrics["tool_errors"] == 1
    pids = {int(each[1]) for each in answers}
    assert len(pids) == 2
    assert all(map(is_gone, pids))
    schemas = one.turns[0].tools
    assert [each["function"]["name"] for each in schemas] == ["add", "pid", "refuse", "picture"]
    assert schemas[0]["function"]["description"] == "Adds two numbers."
    assert schemas[0]["function"]["parameters"]["required"] == ["a", "b"]


async def test_a_shared_server_that_dies_is_an_error_and_is_there_for_the_next_episode(config):
    shared = config(STDIO, {"scope": "run"})
    one, two = await run(shared, call("pid"), "done", num=2)
    [first_pid] = texts(one)
    assert texts(two) == [first_pid]
    assert is_running(int(first_pid))
    t = await run(shared, call("die"), call("pid"), "done")
    gone = "Error: MCP server 'python server.py' is gone"
    assert texts(t) == [gone, gone]
    assert (t.status, t.output.log_metrics["tool_errors"]) == (EpisodeStatus.OK, 2)
    t = await run(shared, call("pid"), "done")
    [new_pid] = texts(t)
    assert new_pid != first_pid and is_gone(first_pid)
    mcp_session.close_all()
    assert is_gone(new_pid)


ODD_SERVER = """
import json, os, sys

schema = {"type": "object", "properties": {}}
names = ["refuse", "pid", "close_output"]
for line in sys.stdin:
    asked = json.loads(line)
    kind, answer = asked["method"], None
    if kind == "initialize":
        version = asked["params"]["protocolVersion"]
        about = {"name": "odd", "version": "1"}
        answer = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
    elif kind == "tools/list":
        answer = {"tools": [{"name": name, "inputSchema": schema} for name in names]}
    elif kind == "tools/call" and asked["params"]["name"] == "pid":
        answer = {"content": [{"type": "text", "text": str(os.getpid())}]}
    elif kind == "tools/call" and asked["params"]["name"] == "close_output":
        os.close(1)
        continue
    elif kind == "tools/call":
        refused = {"code": -32000, "message": "the quota is used up"}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": refused}), flush=True)
        continue
    if answer is not None:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
"""


async def test_an_error_of_a_shared_server_is_an_answer_and_not_its_death(config, tmp_path):
    (tmp_path / "odd.py").write_text(ODD_SERVER)
    made = config({"command": "python", "args": ["odd.py"]}, {"scope": "run"})
    one = await run(made, call("refuse") + call("pid"), "done")
    two = await run(made, call("pid"), "done")
    assert texts(one)[0] == "Error: the quota is used up"
    assert texts(one)[1] == texts(two)[0]


async def test_a_shared_server_that_hung_up_is_ended_when_another_takes_its_place(config, tmp_path):
    (tmp_path / "odd.py").write_text(ODD_SERVER)
    made = config({"command": "python", "args": ["odd.py"]}, {"scope": "run"})
    one = await run(made, call("pid"), call("close_output"), "done")
    two = await run(made, call("pid"), "done")
    first, gone = texts(one)
    assert gone == "Error: MCP server 'python odd.py' is gone"
    assert texts(two) != [first] and is_gone(first)


def test_the_name_of_a_server_holds_no_secret():
    started = McpAddress("/usr/bin/npx", ("-y", "search", "--api-key", "sk-1"))
    script = McpAddress("python", ("/srv/search.py", "--api-key", "sk-1"))
    there = McpAddress(url="https://me:sk-1@search.org:8443/mcp/sk-1?key=sk-1")
    names = [str(started), str(script), str(there)]
    assert names == ["npx", "python search.py", "https://search.org:8443"]
    assert str(McpAddress(url="http://[sk-1")) == "(an address that cannot be read)"


async def test_a_server_that_cannot_be_reached_is_named_without_its_secrets():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(EnvironmentFault, match=f"'{host}' does not start") as error:
        await mcp_session.open_session(McpAddress(url=f"{host}/mcp?key=sk-1"))
    assert "sk-1" not in str(error.value)


DEAF_SERVER = """
import json, os, subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
for _ in range(2):
    asked = json.loads(sys.stdin.readline())
    if asked["method"] == "initialize":
        answer = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {},
                  "serverInfo": {"name": "deaf", "version": "1"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
asked = json.loads(sys.stdin.readline())
Path("deaf.pids").write_text(f"{os.getpid()} {child.pid}")
print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {"tools": []}}), flush=True)
time.sleep(600)
"""
KILLED_RUN = """
import asyncio, time
from pathlib import Path
from ajet.tools.mcp_session import McpAddress, open_session
asyncio.run(open_session(McpAddress("python", ("deaf.py",), cwd=Path.cwd())))
print("open", flush=True)
time.sleep(600)
"""


def test_a_server_that_does_not_read_its_input_ends_with_a_run_that_is_killed(tmp_path):
    (tmp_path / "deaf.py").write_text(DEAF_SERVER)
    command = [sys.executable, "-c", KILLED_RUN]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run_process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, env=environment)
    with run_process:
        assert run_process.stdout.readline() == b"open\n"
        pids = [int(pid) for pid in (tmp_path / "deaf.pids").read_text().split()]
        assert all(map(is_running, pids))
        run_process.kill()
    assert not until_gone(pids)


async def test_a_call_that_hangs_is_given_up_and_its_server_ended(config, tmp_path):
    t = await run(config(STDIO, tool_timeout_s=0.5), call("hang"), "done")
    assert texts(t) == ["Error: the tool did not answer within 0.5 s"]
    assert is_gone((tmp_path / "server.pid").read_text())


async def test_an_episode_that_is_cancelled_leaves_no_server_behind(config, tmp_path):
    toolbox = load_toolbox(config(STDIO))
    is_open = asyncio.Event()

    async def episode():
        task = WorkflowTask(Task("t0", "q"), "e", "0-train-0", 0, 0, "train", 0)
        async with toolbox.open(task, timeout_s=60) as tools:
            is_open.set()
            await tools.call("hang", {})

    running = asyncio.create_task(episode())
    await is_open.wait()
    pid = (tmp_path / "server.pid").read_text()
    assert is_running(int(pid))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert is_gone(pid)


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_server_over_http_gets_the_headers(config, tmp_path, transport):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = {"http": "mcp", "sse": "sse"}[transport]
    address = {
        "url": f"http://127.0.0.1:{port}/{path}",
        "headers": {"Authorization": "Bearer ${oc.env:TEST_TOKEN}"},
        "transport": transport,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_TOKEN", "secret")
        made = config(address)
        name = {"http": "streamable-http", "sse": "sse"}[transport]
        server = subprocess.Popen([sys.executable, "server.py", name, str(port)], cwd=tmp_path)
        try:
            _wait_for(port)
            t = await run(made, call("add", a=2, b=3) + call("token"), "done")
        finally:
            server.kill()
            server.wait()
    assert texts(t) == ["5", "Bearer secret"]


def _wait_for(port, within_s=20):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.02)
    raise AssertionError("the server did not start")


def test_a_broken_mcp_server_is_found_before_a_launch(config, tmp_path):
    from ajet.cli.preflight import check_classes

    check_classes(config(STDIO))
    with pytest.raises(ConfigError, match=r"no tool 'divide'; it has add, pid, die, refuse"):
        check_classes(config(STDIO, {"tools": ["divide"]}))
    broken = config({"command": "python", "args": ["broken.py"]})
    (tmp_path / "broken.py").write_text("import no_such_package\n")
    with pytest.raises(ConfigError, match="its last words: ModuleNotFoundError: No module named"):
        check_classes(broken)
    (tmp_path / "odd.py").write_text(ODD_SERVER.replace('"refuse", "pid"', '"pid", "pid"'))
    with pytest.raises(ConfigError, match=r"'python odd\.py' has several tools of one name"):
        check_classes(config({"command": "python", "args": ["odd.py"]}))
