"""What a server can make its clients hold or wait for: raw servers on loopback."""

import asyncio
import contextlib
import gzip

import httpx
import openai
import pytest

from ajet.core.errors import ChatError, EnvironmentFault, ModelError
from ajet.core.inference.chat_client import ChatClient
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.inference.openai_endpoint import OpenAIEngine
from ajet.core.inference.replica import ReplicaDown
from ajet.core.net.http_client import LimitedAsyncClient, blocking, openai_http_client
from ajet.environments.env_service.client import EnvServiceClient
from ajet.servers.replica import ServedModel, ServerReplica
from ajet.tools import mcp_session
from ajet.tools.mcp_session import McpAddress

CHUNK = bytes(1 << 20)


@contextlib.asynccontextmanager
async def serve(answer):
    """Yields the address of a server that reads a request's headers and then does `answer`."""
    sent = []

    async def handle(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            await answer(head, writer, sent)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"http://{host}:{port}", sent
    finally:
        server.close()


async def drip_headers(_head, writer, _sent):
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-drip: 1\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)


async def drip_body(_head, writer, _sent):
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.05)


async def flood(_head, writer, sent):
    """200 MB."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 209715200\r\n\r\n")
    for _ in range(200):
        writer.write(CHUNK)
        await writer.drain()
        sent.append(len(CHUNK))


async def flood_of_a_redirect(_head, writer, sent):
    writer.write(b"HTTP/1.1 307 Moved\r\nlocation: /there\r\ncontent-length: 209715200\r\n\r\n")
    for _ in range(200):
        writer.write(CHUNK)
        await writer.drain()
        sent.append(len(CHUNK))


async def bomb(_head, writer, _sent):
    small = gzip.compress(bytes(100 << 20))
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n")
    writer.write(f"content-length: {len(small)}\r\n\r\n".encode() + small)
    await writer.drain()


def env_service(url, timeout_s):
    client = EnvServiceClient(url, "e", timeout_s=timeout_s, backoff_s=0.01)
    return client.create("t", "i"), EnvironmentFault


def judge(url, timeout_s):
    client = ChatClient("m", url, api_key="k", timeout_s=timeout_s, max_retries=0)
    return client.complete([{"role": "user", "content": "?"}]), ChatError


def evaluated_model(url, timeout_s):
    engine = OpenAIEngine(url, model="m", timeout_s=timeout_s)
    engine._client.max_retries = 0
    sampling = SamplingParams(max_tokens=1, temperature=1.0)
    return engine.chat([{"role": "user", "content": "?"}], None, sampling, None), openai.APIError


def engine_server(url, timeout_s):
    replica = ServerReplica("r0", url, ServedModel("m", 10, 10))
    return replica.request("GET", "/health", timeout=timeout_s), (ReplicaDown, ModelError)


CLIENTS = [env_service, judge, evaluated_model, engine_server]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("drip", [drip_headers, drip_body])
async def test_a_server_that_drips_is_given_up(client, drip):
    async with serve(drip) as (url, _):
        call, error = client(url, 0.5)
        with pytest.raises(error):
            await asyncio.wait_for(call, 60)


@pytest.mark.parametrize("client", CLIENTS)
async def test_an_answer_of_200_mb_is_not_read_whole(client):
    async with serve(flood) as (url, sent):
        call, error = client(url, 60.0)
        with pytest.raises(error):
            await call
        assert sum(sent) < 100 << 20  # 64 MiB, and what is in the buffers between


async def test_an_mcp_server_over_http_that_floods_is_given_up(monkeypatch):
    monkeypatch.setattr(mcp_session, "START_TIMEOUT_S", 2.0)
    async with serve(flood) as (url, sent):
        with pytest.raises(EnvironmentFault, match="does not start"):
            await mcp_session.open_session(McpAddress(url=f"{url}/mcp"))
        assert sum(sent) < 100 << 20


async def test_the_body_of_a_redirect_is_limited_too():
    async with serve(flood_of_a_redirect) as (url, sent):
        async with LimitedAsyncClient(follow_redirects=True, timeout=60) as client:
            with pytest.raises(httpx.DecodingError, match="more than 67108864 bytes"):
                await client.get(url)
        assert sum(sent) < 100 << 20


async def test_a_small_answer_cannot_become_a_large_one():
    async with serve(bomb) as (url, _), LimitedAsyncClient(timeout=60) as client:
        with pytest.raises(httpx.DecodingError, match="compressed"):
            await client.get(url)


async def test_an_event_stream_may_last_and_its_events_are_limited():
    async def events(_head, writer, _sent):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        for _ in range(12):
            writer.write(b"data: " + b"x" * 500 + b"\n")
            await writer.drain()
            writer.write(b"\n")
            await writer.drain()
            await asyncio.sleep(0.05)
        while True:
            writer.write(b"data: and no end of the event\n")
            await writer.drain()

    async with (
        serve(events) as (url, _),
        LimitedAsyncClient(timeout=0.4, max_answer_bytes=5000) as client,
        client.stream("GET", url) as response,
    ):
        read = b""
        with pytest.raises(httpx.DecodingError, match="more than 5000 bytes"):
            async for chunk in response.aiter_bytes():
                read += chunk
    assert read.count(b"x" * 500) == 12


async def test_without_a_read_timeout_an_answer_may_take_its_time():
    async def slow(_head, writer, _sent):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n")
        for _ in range(4):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.1)

    async with serve(slow) as (url, _), LimitedAsyncClient(timeout=None) as client:
        assert (await client.get(url)).text == "xxxx"


def test_openais_client_keeps_its_own_settings():
    client, own = openai_http_client(), openai.DefaultAsyncHttpxClient()
    assert (client.timeout, client.follow_redirects) == (own.timeout, own.follow_redirects)


def test_an_async_client_serves_where_there_is_no_event_loop():
    async def double(number):
        await asyncio.sleep(0)
        return 2 * number

    with blocking() as wait:
        assert wait(double, number=21) == 42
