"""MCP servers over stdio that send what no server should: the call fails, or is answered all the
same; the episode goes on, and memory is bounded."""

import json
import re
import tracemalloc

import pytest

from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.tools import mcp_session
from ajet.tools.mcp_stdio import MAX_LINE_BYTES
from tests.agents.agent_runs import call, config_in, run, texts

SERVER = """
import json, os, sys

DEEP = "[" * 20_000 + "]" * 20_000
DIGITS = "9" * 5_000


def send(text):
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    while data:
        data = data[os.write(1, data):]


def frame(**keys):
    return json.dumps({"jsonrpc": "2.0", **keys}) + "\\n"


def result(of):
    return frame(id=of["id"], result=RESULTS[of["method"]])


def answer(of, text):
    return frame(id=of["id"], result={"content": [{"type": "text", "text": text}]})


def flood(data, mega_bytes):
    for _ in range(mega_bytes):
        send(data * (1_000_000 // len(data)))


NOISE = {
    "no json": lambda of: send("hello\\n\\n{\\n"),
    "another shape": lambda of: send('[]\\n5\\nnull\\n"text"\\n{}\\n[{"jsonrpc": "2.0"}]\\n'),
    "ids never asked": lambda of: [
        send(frame(id=id, result={})) for id in (-1, 10**15, "none", DIGITS, "", "\\x1b]0;owned")
    ],
    "huge ids": lambda of: send('{"jsonrpc": "2.0", "id": %s, "result": {}}\\n' % DIGITS),
    "nul": lambda of: send("\\0" * 1000 + "\\n" + frame(id="\\0", result={})),
    "lone surrogates": lambda of: send(
        '{"jsonrpc": "2.0", "id": "\\\\ud800", "result": {"a": "\\\\udfff"}}\\n'
    ),
    "20,000 deep": lambda of: send(DEEP + "\\n" + '{"jsonrpc": "2.0", "x": %s}\\n' % DEEP),
    "deep within a result": lambda of: send(
        '{"jsonrpc": "2.0", "id": 77, "result": {"content": %s}}\\n' % DEEP
    ),
    "requests": lambda of: [
        send(frame(id=id, method=method, params=params))
        for id, method, params in (
            (1, "ping", None), ("a", "sampling/createMessage", {}), (2, "no/such", {"x": 1}),
            (of["id"], "roots/list", None), (DIGITS, "elicitation/create", {"message": "\\x1b[2J"}),
        )
    ],
    "notifications": lambda of: [
        send(frame(method=method, params=params))
        for method, params in (
            ("notifications/cancelled", {"requestId": of["id"]}),
            ("notifications/progress", {"progressToken": of["id"], "progress": 1e308}),
            ("notifications/message", {"level": "owned", "data": "\\x1b]0;owned"}),
            ("notifications/\\x1b]0;owned", {"owned": "\\x1b]0;owned\\x07"}),
            ("notifications/tools/list_changed", None),
        )
    ],
    "many lines": lambda of: flood(b"x" * 99 + b"\\n", 5),
}
INSTEAD = {
    "a line without end": lambda of: flood(b"x", 64),
    "an answer of 64 MB": lambda of: [
        send('{"jsonrpc": "2.0", "id": %d, "result": {"content": "' % of["id"]),
        flood(b"x", 64),
        send('"}}\\n'),
    ],
    "half a character": lambda of: send(frame(id=of["id"], result={"content": [TEXT]})),
    "text that is not utf-8": lambda of: send(
        frame(id=of["id"], result={"content": [{"type": "text", "text": "caf@"}]})
        .encode().replace(b"@", b"\\xe9")
    ),
    "no text": lambda of: send(
        frame(id=of["id"], result={"content": [], "structuredContent": {"degrees": 21}})
    ),
    "a resource of text": lambda of: send(frame(id=of["id"], result={"content": [FILE, BYTES]})),
    "no utf-8": lambda of: send(b"\\xff\\xfe\\xc3\\n"),
    "a result that is none": lambda of: send(frame(id=of["id"], result=5)),
    "an error of another shape": lambda of: send(frame(id=of["id"], error={"code": "x"})),
    "a result of another shape": lambda of: send(frame(id=of["id"], result={"content": 5})),
    "an error": lambda of: send(frame(id=of["id"], error={"code": 10**30, "message": "a\\0b"})),
    "a result that does not fit its schema": lambda of: send(
        frame(id=of["id"], result={"content": [], "structuredContent": {"a": "a" * 50 + "!"}})
    ),
    "its end": lambda of: sys.exit(),
}
TEXT = {"type": "text", "text": "cut \\ud83d"}
FILE = {"type": "resource", "resource": {"uri": "repo://a.py", "text": "print(1)"}}
BYTES = {"type": "resource", "resource": {"uri": "repo://a.bin", "blob": "AAAA"}}
PATTERN = {"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}}
RESULTS = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "odd", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "odd", "inputSchema": {}, "outputSchema": PATTERN}]},
}
"""
SERVE = """
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") in RESULTS:
        send(result(asked))
    elif asked.get("method") == "tools/call":
        kind = asked["params"]["arguments"]["kind"]
        if kind in INSTEAD:
            INSTEAD[kind](asked)
        else:
            NOISE[kind](asked)
            send(answer(asked, "fine"))
"""
NOISE = re.findall(r'^    "(.*)": lambda', SERVER.partition("INSTEAD")[0], re.MULTILINE)
TOO_LONG = "it sent a line of more than 16 MiB"
LATE = "Error: the tool did not answer within 1 s"
GONE = "Error: MCP server 'python server.py' is gone"


def config(folder, serve=SERVE, **settings):
    entry = {"mcp": {"command": "python", "args": ["server.py"]}, "scope": "run"}
    files = {"server.py": SERVER + serve, "tools.yaml": json.dumps({"tools": [entry]})}
    return config_in(folder, files, tool_config_path="tools.yaml", **settings)


@pytest.fixture(autouse=True)
def closed():
    yield
    mcp_session.close_all()


async def test_noise_before_an_answer_is_passed_over_and_not_shown(tmp_path, caplog):
    made = config(tmp_path, max_parallel_calls=len(NOISE))
    t = await run(made, "".join(call("odd", kind=kind) for kind in NOISE), "done")
    assert len(NOISE) == 11
    assert dict(zip(NOISE, texts(t), strict=True)) == dict.fromkeys(NOISE, "fine")
    assert caplog.records == []


@pytest.mark.parametrize("kind", ["a line without end", "an answer of 64 MB"])
async def test_a_line_that_is_too_long_ends_the_connection_in_bounded_memory(tmp_path, kind):
    made = config(tmp_path)
    tracemalloc.start()
    try:
        t = await run(made, call("odd", kind=kind), call("odd", kind=kind), "done")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert texts(t) == [f"{GONE}: {TOO_LONG}"] * 2
    assert (t.status, t.output.log_metrics["tool_errors"]) == (EpisodeStatus.OK, 2)
    assert peak_bytes < 3 * MAX_LINE_BYTES
    assert texts(await run(made, call("odd", kind="no json"), "done")) == ["fine"]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("no utf-8", LATE),
        ("a result that is none", LATE),
        ("an error of another shape", LATE),
        ("a result of another shape", "Error: ValidationError: 1 validation error for CallTool"),
        ("an error", "Error: a\0b"),
        ("its end", GONE),
    ],
)
async def test_a_malformed_mcp_answer_is_an_error_of_the_call(tmp_path, kind, told):
    made = config(tmp_path, tool_timeout_s=1 if told == LATE else 60)
    t = await run(made, call("odd", kind=kind), "done")
    assert texts(t)[0].startswith(told)
    assert (t.status, t.output.log_metrics["tool_errors"]) == (EpisodeStatus.OK, 1)


async def test_a_pattern_of_a_server_holds_up_no_other_call(tmp_path):
    t = await run(config(tmp_path), call("odd", kind="a result that does not fit its schema"), "x")
    assert texts(t) == [json.dumps({"a": "a" * 50 + "!"})]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("half a character", "cut \ufffd"),
        ("text that is not utf-8", "caf\ufffd"),
        ("no text", '{"degrees": 21}'),
        ("a resource of text", "print(1)\n(resource left out: only text can be read)"),
    ],
)
async def test_what_an_answer_says_is_shown_in_whichever_way_it_says_it(tmp_path, kind, told):
    t = await run(config(tmp_path, tool_timeout_s=10), call("odd", kind=kind), "done")
    assert texts(t) == [told]
    assert t.output.log_metrics["tool_errors"] == 0


LISTS = {
    "a name of two lines": ({"name": "a\nb"}, r"tool 'a\nb': a name is a word of 1 to 128 char"),
    "a name of codes": ({"name": "\x1b[2J"}, r"tool '\x1b[2J': a name is a word of 1 to 128 char"),
    "no name": ({"name": ""}, "tool '': a name is a word of 1 to 128 characters"),
    "a name without end": ({"name": "x" * 100_000}, f"tool '{'x' * 128}': a name is a word"),
    "a list": (
        {"inputSchema": {"type": "array"}},
        "tool 'odd': its parameters are of type 'arr",
    ),
    "an endless reference": (
        {"inputSchema": {"properties": {"x": {"$ref": "#/properties/x"}}}},
        "tool 'odd': its parameters refer to themselves",
    ),
    "a circle of references": (
        {"inputSchema": {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#"}]}}}},
        "tool 'odd': its parameters refer to themselves",
    ),
    "no schema": ({"inputSchema": {"properties": []}}, "tool 'odd': its parameters are not a JSON"),
}


@pytest.mark.parametrize(("tool", "told"), LISTS.values(), ids=LISTS)
async def test_a_tool_that_no_model_could_call_is_the_episodes_fault_in_one_line(
    tmp_path, tool, told
):
    offered = json.dumps([{"name": "odd", "inputSchema": {}} | tool])
    listed = f"RESULTS['tools/list'] = {{'tools': json.loads({offered!r})}}\n"
    t = await run(config(tmp_path, listed + SERVE), "done", max_failure_rate=1.0)
    assert t.status is EpisodeStatus.ENV_ERROR
    assert t.error.startswith(f"EnvironmentFault: MCP server 'python server.py': {told}")
    assert "\n" not in t.error and len(t.error) < 600


CHANGING = """
import pathlib

started = pathlib.Path("started")
if started.exists():  # from the second start on it has another tool
    RESULTS["tools/list"]["tools"][0]["name"] = "other"
started.touch()
"""


async def test_a_server_that_changes_its_tools_fails_the_episode_that_meets_it(tmp_path):
    made = config(tmp_path, CHANGING + SERVE)
    listing = json.loads((tmp_path / "tools.yaml").read_text())
    listing["tools"][0] |= {"tools": ["odd"], "scope": "episode"}
    (tmp_path / "tools.yaml").write_text(json.dumps(listing))
    first = await run(made, call("odd", kind="no json"), "done")
    assert texts(first) == ["fine"]
    second = await run(made, "done", max_failure_rate=1.0)
    assert (second.status, second.error) == (
        EpisodeStatus.ENV_ERROR,
        "EnvironmentFault: MCP server 'python server.py' has no tool 'odd'; it has other",
    )


@pytest.mark.parametrize("silent_at", ["initialize", "tools/list"])
async def test_a_server_that_never_answers_fails_the_episode_after_a_time(
    tmp_path, monkeypatch, silent_at
):
    monkeypatch.setattr(mcp_session, "START_TIMEOUT_S", 1.0)
    t = await run(config(tmp_path, f"RESULTS.pop({silent_at!r})\n" + SERVE), max_failure_rate=1.0)
    assert t.status is EpisodeStatus.ENV_ERROR
    assert t.error.startswith(
        "EnvironmentFault: MCP server 'python server.py' does not start: no answer in 1 s"
    )


STARTS = {
    "a line without end": ('flood(b"x", 64)', f"McpLineTooLong: {TOO_LONG}"),
    "another version": (
        'send(frame(id=0, result={**RESULTS["initialize"], "protocolVersion": "\\x1b]0;owned"}))',
        r"RuntimeError: Unsupported protocol version from the server: \x1b]0;owned",
    ),
    "a result of another shape": (
        "send(frame(id=0, result={}))",
        "ValidationError: 3 validation errors for InitializeResult",
    ),
    "last words without end": (
        'os.write(2, b"\\x1b[2J" + b"x" * 40_000_000)',
        "McpError: Connection closed; its last words: " + "x" * 500,
    ),
    "tools without end": (
        """
while line := sys.stdin.readline():
    asked = json.loads(line)
    tool = {"name": "t", "inputSchema": {"x": "x" * 5_000_000}}
    if asked["method"] == "tools/list":
        send(frame(id=asked["id"], result={"tools": [tool], "nextCursor": "more"}))
    elif asked["method"] == "initialize":
        send(result(asked))
""",
        "ValueError: its tools take more than 16000000 characters",
    ),
}


@pytest.mark.parametrize(("serve", "told"), STARTS.values(), ids=STARTS)
async def test_a_start_that_goes_wrong_is_the_episodes_fault_in_one_line(tmp_path, serve, told):
    t = await run(config(tmp_path, serve), "done", max_failure_rate=1.0)
    start = "EnvironmentFault: MCP server 'python server.py' does not start: "
    assert (t.status, t.error) == (EpisodeStatus.ENV_ERROR, (start + told)[: len(t.error)])
    assert len(t.error) > len(start + told) - 200
