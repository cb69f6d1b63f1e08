"""Somebody else's model: asked once, retried, held to its limits, its key out of sight."""

import asyncio
import socket
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from ajet import ChatClient
from ajet.core.errors import ChatError, ConfigError
from ajet.core.inference.chat_client import RateLimit, ReplyCache
from ajet.core.rollout.failure import status_of
from ajet.core.trajectory.trajectory import EpisodeStatus
from tests.cli.chat_server import ChatServer, message

HELLO = [{"role": "user", "content": "hello"}]
KEY = "sk-0123456789abcdef"


def script(*answers):
    """Answers in their order, the last one for ever; a text is a good reply."""
    left = list(answers)

    def reply(body):
        answer = left.pop(0) if len(left) > 1 else left[0]
        return (200, message(answer)) if isinstance(answer, str) else answer

    return reply


@pytest.fixture
def server():
    with ChatServer(script("hi")) as server:
        yield server


def client_of(server, **options):
    return ChatClient("judge", server.url, **{"api_key": KEY, "max_retries": 0} | options)


async def test_the_request_has_the_model_the_messages_and_every_sampling_field(server):
    client = client_of(server)
    assert await client.complete(HELLO, temperature=0, top_k=3, seed=7) == "hi"
    await client.close()
    (asked,) = server.requests
    assert asked == {"model": "judge", "messages": HELLO, "temperature": 0, "top_k": 3, "seed": 7}
    assert server.keys == {f"Bearer {KEY}"}


async def test_a_rate_limited_request_is_asked_again(server):
    server.reply = script((429, {"error": {"message": "slow down"}}), "hi")
    assert await client_of(server, max_retries=1).complete(HELLO) == "hi"
    assert len(server.requests) == 2


async def test_a_storm_of_500_is_one_line_that_counts_the_attempts(server):
    server.reply = script((500, {"error": {"message": f"boom\nfor {KEY}"}}))
    with pytest.raises(ChatError) as error:
        await client_of(server, max_retries=1).complete(HELLO)
    assert len(server.requests) == 2
    text = str(error.value)
    assert text.startswith(f"model judge at {server.url}: Error code: 500")
    assert text.endswith("(tried 2 times)") and "\n" not in text
    assert KEY not in text and error.value.__cause__ is None


async def test_a_refused_request_is_not_asked_again(server):
    server.reply = script((401, {"error": {"message": "who are you"}}))
    with pytest.raises(ChatError, match="who are you") as error:
        await client_of(server, max_retries=3).complete(HELLO)
    assert len(server.requests) == 1 and "tried" not in str(error.value)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((200, "{not json"), "judge at http"),
        ((200, '"a text"'), "the answer has no text"),
        ((200, {}), "the answer has no text"),
        ((200, {"choices": []}), "the answer has no text"),
        ((200, {"choices": [{"message": None}]}), "the answer has no text"),
        ((200, message(None)), "the answer has no text"),
        ("  \n", "the answer has no text"),
        (
            (200, {"choices": [{"finish_reason": "length", "message": {"content": "It is"}}]}),
            "the reply was cut: raise its max_tokens",
        ),
    ],
)
async def test_an_answer_that_is_no_whole_text_is_an_error_and_is_not_kept(
    answer, problem, server, tmp_path
):
    client = client_of(server, cache_path=tmp_path / "replies.sqlite")
    server.reply = script(answer)
    with pytest.raises(ChatError, match=problem):
        await client.complete(HELLO)
    server.reply = script("hi")
    assert await client.complete(HELLO) == "hi"


async def test_nobody_at_the_address_is_one_line():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(ChatError, match=r"cannot be reached: .* \(tried 2 times\)") as error:
        await ChatClient("judge", url, max_retries=1).complete(HELLO)
    assert "\n" not in str(error.value)


async def test_a_silent_server_is_given_up(server):
    wait = threading.Event()
    server.reply = lambda body: (wait.wait(30), (200, message("late")))[1]
    with pytest.raises(ChatError, match=r"no answer within 0\.1 s"):
        await client_of(server, timeout_s=0.1).complete(HELLO)
    wait.set()


async def test_the_cache_answers_other_clients_and_other_processes(server, tmp_path):
    path = tmp_path / "replies.sqlite"
    first = client_of(server, cache_path=path)
    assert await first.complete(HELLO, temperature=0) == "hi"
    assert await client_of(server, cache_path=path).complete(HELLO, temperature=0) == "hi"
    assert len(server.requests) == 1
    code = (
        "import asyncio, sys; from ajet import ChatClient\n"
        f"client = ChatClient('judge', {server.url!r}, cache_path={str(path)!r})\n"
        f"print(asyncio.run(client.complete({HELLO!r}, temperature=0)))\n"
        f"print(asyncio.run(client.complete({HELLO!r}, temperature=1)))\n"
    )
    run = [subprocess.Popen([sys.executable, "-c", code], stdout=-1, text=True) for _ in range(2)]
    assert [process.communicate()[0] for process in run] == ["hi\nhi\n"] * 2
    assert 2 <= len(server.requests) <= 3  # temperature 1 is another request, asked by any of them
    assert KEY.encode() not in path.read_bytes()
    await first.close()


@pytest.mark.parametrize("field", ["model", "base_url", "messages", "sampling"])
async def test_whatever_differs_is_another_request(field, server, tmp_path):
    path = tmp_path / "replies.sqlite"
    await client_of(server, cache_path=path).complete(HELLO, temperature=0)
    model = "other" if field == "model" else "judge"
    url = server.url.replace("127.0.0.1", "localhost") if field == "base_url" else server.url
    said = [{"role": "user", "content": "hello!"}] if field == "messages" else HELLO
    temperature = 1 if field == "sampling" else 0
    await ChatClient(model, url, cache_path=path).complete(said, temperature=temperature)
    assert len(server.requests) == 2


def test_machines_that_share_a_disk_may_share_a_cache(tmp_path):
    """A write-ahead log is for processes of one machine. A file of an earlier release had one."""
    path = tmp_path / "replies.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as earlier:
        earlier.execute("PRAGMA journal_mode = WAL")
        earlier.execute("CREATE TABLE replies (key TEXT PRIMARY KEY, reply TEXT NOT NULL)")
        earlier.execute("INSERT INTO replies VALUES ('old', 'kept')")
    here, there = ReplyCache(path), ReplyCache(path)
    here.put("new", "shared")
    assert (there.get("new"), there.get("old")) == ("shared", "kept")
    assert [file.name for file in tmp_path.iterdir()] == ["replies.sqlite"]
    here.close()
    there.close()


async def test_a_file_that_is_no_cache_is_one_line(server, tmp_path):
    path = tmp_path / "replies.sqlite"
    path.write_text("these are my notes, " * 100)
    with pytest.raises(ChatError, match=r"replies\.sqlite cannot be used: .*; move it away"):
        await client_of(server, cache_path=path).complete(HELLO)
    assert not server.requests


async def test_equal_requests_in_flight_are_asked_once_and_outlive_one_that_is_cancelled(server):
    go = threading.Event()
    server.reply = lambda body: (go.wait(30), (200, message("hi")))[1]
    client = client_of(server)
    waiting = [asyncio.create_task(client.complete(HELLO)) for _ in range(3)]
    while not server.requests:
        await asyncio.sleep(0.01)
    waiting[0].cancel()
    await asyncio.sleep(0)
    go.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError) and results[1:] == ["hi", "hi"]
    assert len(server.requests) == 1


async def test_a_request_that_nobody_waits_for_ends_and_can_be_made_again(server):
    go = threading.Event()
    server.reply = lambda body: (go.wait(30), (200, message("hi")))[1]
    client = client_of(server, max_parallel=1)
    waiting = asyncio.create_task(client.complete(HELLO))
    while not server.requests:
        await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.wait({waiting})
    go.set()
    assert await client.complete(HELLO) == "hi"  # the only place is free again
    assert len(server.requests) == 2


async def test_no_more_requests_run_at_once_than_allowed(server):
    running, most, lock = 0, 0, threading.Lock()

    def reply(body):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.02)
        with lock:
            running -= 1
        return 200, message("hi")

    server.reply = reply
    client = client_of(server, max_parallel=2)
    await asyncio.gather(*(client.complete(HELLO, seed=n) for n in range(6)))
    assert most == 2


async def test_starts_are_spread_over_the_minute_in_their_order():
    now, slept = [0.0], []

    async def sleep(seconds):
        slept.append(seconds)

    limit = RateLimit(2, clock=lambda: now[0], sleep=sleep)
    for now[0] in (0.0, 1.0, 2.0, 3.0, 4.0):
        await limit.wait()
    assert slept == [58.0, 58.0, 116.0]  # at 60, 61 and 120 seconds
    now[0] = 300.0
    await limit.wait()
    assert len(slept) == 3


async def test_retries_count_in_the_rate_limit(server):
    server.reply = script((429, {"error": {"message": "slow down"}}), "hi")
    client = client_of(server, requests_per_minute=2, max_retries=1)
    assert await client.complete(HELLO) == "hi"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.complete(HELLO, seed=1), 0.2)
    assert len(server.requests) == 2


def test_a_client_serves_one_event_loop_after_another(server):
    client = client_of(server)
    said = [asyncio.run(client.complete(HELLO, seed=n)) for n in range(3)]
    assert said == ["hi"] * 3


async def test_the_key_comes_from_the_environment(server, monkeypatch):
    for name in ("AJET_JUDGE_API_KEY", "AJET_ENDPOINT_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="set AJET_JUDGE_API_KEY"):
        ChatClient("judge")
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    await ChatClient("judge").complete(HELLO)
    monkeypatch.setenv("OPENAI_API_KEY", "for-openai")
    await ChatClient("judge").complete(HELLO)
    monkeypatch.setenv("AJET_JUDGE_API_KEY", "for-judges")
    await ChatClient("judge").complete(HELLO)
    assert server.keys == {"Bearer none", "Bearer for-openai", "Bearer for-judges"}


@pytest.mark.parametrize(
    ("url", "problem"),
    [("localhost:8000", "begins with http"), ("http://me:secret@host/v1", "leave the login out")],
)
def test_an_address_is_one_and_holds_no_login(url, problem):
    with pytest.raises(ConfigError, match=problem) as error:
        ChatClient("judge", url)
    assert "secret" not in str(error.value)


def test_a_workflow_whose_own_model_gives_no_answer_failed_by_its_environment():
    assert status_of(ChatError("model judge at …: cannot be reached")) is EpisodeStatus.ENV_ERROR
