"""What clients of a server can hold: raw sockets on loopback against uvicorn with the limits."""

import asyncio
import contextlib
import socket
import threading
import time

import pytest
import uvicorn

from ajet.core.net.http_server import ServerLimits, limited_protocol

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def app(scope, receive, send):
    """Reads the whole body and says its length; /slow takes a second for it."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message["body"]), message["more_body"]
    if scope["path"] == "/slow":
        await asyncio.sleep(1)
    headers = [(b"content-length", str(len(str(size))).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": str(size).encode()})


@contextlib.contextmanager
def serve(**limits):
    config = uvicorn.Config(
        app,
        http=limited_protocol(ServerLimits(**limits)),
        ws="none",
        port=0,
        log_level="critical",
        lifespan="off",
        backlog=2048,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    try:
        yield server.servers[0].sockets[0].getsockname()
    finally:
        server.should_exit = True
        thread.join(10)


def connect(address, sent=b""):
    client = socket.create_connection(address, timeout=60)
    with contextlib.suppress(ConnectionError):
        client.sendall(sent)
    return client


def is_ended(client):
    """Waits for the server to close the connection; what it has said before does not matter."""
    try:
        while client.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


def is_open(client):
    """True if the server has neither said anything nor closed the connection."""
    client.setblocking(False)
    try:
        client.recv(65536)
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False


def answer(client, sent=GET):
    client.settimeout(60)
    client.sendall(sent)
    return client.recv(65536)


def test_900_half_open_connections_neither_stay_nor_keep_others_out():
    half = b"POST / HTTP/1.1\r\nhost: x\r\nx-slow: "
    with serve(header_s=1.0, max_connections=100) as address, contextlib.ExitStack() as clients:
        opened = [clients.enter_context(connect(address, half)) for _ in range(900)]
        assert b"200 OK" in answer(clients.enter_context(connect(address)))
        assert all(map(is_ended, opened))


def test_a_connection_that_says_nothing_is_closed():
    with serve(header_s=0.2) as address, connect(address) as client:
        assert is_ended(client)


def test_headers_that_drip_are_not_waited_for():
    with (
        serve(header_s=0.5) as address,
        connect(address, b"GET / HTTP/1.1\r\n") as client,
        pytest.raises(ConnectionError),
    ):
        while True:
            client.sendall(b"x")
            time.sleep(0.05)


def test_100_partial_bodies_hold_no_more_than_the_server_allows_together():
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2000000\r\n\r\n"
    body = bytes(1 << 20)
    with serve() as address, contextlib.ExitStack() as clients:
        opened = [clients.enter_context(connect(address, head + body)) for _ in range(100)]
        whole = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc"
        deadline = time.monotonic() + 30
        while (num_open := sum(map(is_open, opened))) > 64 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert 50 <= num_open <= 64  # MB, of 64 MiB
        assert b"200 OK" in answer(clients.enter_context(connect(address)), whole)
        for client in opened:
            client.close()
        deadline = time.monotonic() + 30  # what they held is free again
        while b"200 OK" not in answer(connect(address), head + bytes(2_000_000)):
            assert time.monotonic() < deadline


def test_a_body_that_stalls_is_not_waited_for():
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n"
    with serve(body_s=0.2) as address, connect(address, head + b"12345") as client:
        assert is_ended(client)


def test_headers_and_bodies_have_a_largest_size():
    endless = b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x-many: 1\r\n" * 3000
    with serve(max_header_bytes=20_000) as address, connect(address, endless) as client:
        assert b" 431 " in client.recv(65536) and is_ended(client)
    chunk = b"186a0\r\n" + bytes(100_000) + b"\r\n"
    large = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + chunk
    with serve(max_body_bytes=150_000) as address, connect(address, large) as client:
        assert is_open(client)
        client.setblocking(True)
        client.sendall(chunk)
        assert b" 413 " in client.recv(65536) and is_ended(client)


def test_a_connection_that_is_kept_alive_and_one_whose_answer_takes_long_are_not_ended():
    with serve(header_s=0.3, body_s=0.3) as address, connect(address) as client:
        assert b"200 OK" in answer(client)
        time.sleep(0.6)
        assert b"200 OK" in answer(client, GET.replace(b"/ ", b"/slow ", 1))
        assert b"200 OK" in answer(client)


def test_an_idle_connection_makes_room_for_a_new_one_and_a_busy_one_does_not():
    with (
        serve(max_connections=2) as address,
        connect(address) as idle,
        connect(address, GET.replace(b"/ ", b"/slow ", 1)) as busy,
    ):
        assert b"200 OK" in answer(idle)
        with connect(address) as new:
            assert b"200 OK" in answer(new)
        assert b"200 OK" in busy.recv(65536)
        assert is_ended(idle)
