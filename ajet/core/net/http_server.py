"""Serves an application in a thread, and limits what clients of an HTTP server can take.

    server = ServerThread(app, listening_socket(…), ServerLimits(), "name of the thread")
    uvicorn.Config(app, http=limited_protocol(ServerLimits()), ws="none")    # in this thread

    connection ──> headers within header_s ──> body within body_s ──> the application answers
                                           └─ partial bodies together: max_partial_bytes

uvicorn waits for ever for the rest of a request. Here, a connection without a complete request is
dropped for a new one when there are `max_connections`. Importing this module imports uvicorn.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code

MIB = 1 << 20
BACKLOG = 2048
CLOSE_S = 4.0
"""Seconds for a server's thread to end after its requests."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of one server. `max_partial_bytes` is for all incomplete bodies together."""

    header_s: float = 20.0
    body_s: float = 60.0
    max_connections: int = 4096
    max_header_bytes: int = 64 << 10
    max_body_bytes: int = 32 * MIB
    max_partial_bytes: int = 64 * MIB


@dataclass(slots=True)
class _ServerUse:
    """What the connections of one server have in use."""

    waiting: dict[LimitedProtocol, None] = field(default_factory=dict)
    """The connections without a complete request, in the order in which they began to wait."""
    partial_bytes: int = 0


def listening_socket(host: str, port: int, whose: str, remedy: str) -> socket.socket:
    """Returns a listening socket, on any free port if `port` is 0. Raises a ConfigError that ends
    with `remedy` if the port is not available."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"{whose} cannot listen on {host}:{port}: {error.strerror}; {remedy}",
            code=Code.PORT_IN_USE,
        ) from error
    listener.listen(BACKLOG)
    return listener


class ServerThread:
    """uvicorn in a separate thread, from its construction on."""

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        listener: socket.socket,
        limits: ServerLimits,
        name: str,
        **options: Any,
    ) -> None:
        """`options` are those of `uvicorn.Config`."""
        self.listener = listener
        config = uvicorn.Config(
            app,
            http=limited_protocol(limits),
            ws="none",
            log_config=None,
            access_log=False,
            log_level="critical",  # applications log their failed requests
            proxy_headers=False,  # any client could send them
            timeout_keep_alive=600,
            **{"lifespan": "off", **options},
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name=name, daemon=True
        )
        self._thread.start()

    def close(self, finish_s: int) -> None:
        """Takes no more requests, and ends after at most `finish_s` seconds for those under way."""
        self._server.config.timeout_graceful_shutdown = finish_s
        self._server.should_exit = True
        self._thread.join(finish_s + CLOSE_S)
        self.listener.close()


def limited_protocol(limits: ServerLimits) -> type[LimitedProtocol]:
    """Returns the protocol class for one server."""
    shared = {"limits": limits, "use": _ServerUse()}
    return type(LimitedProtocol.__name__, (LimitedProtocol,), shared)


class LimitedProtocol(HttpToolsProtocol):
    """A connection of uvicorn that is closed when it exceeds a limit."""

    limits: ServerLimits
    use: _ServerUse
    _awaited: Literal["headers", "body"] | None = None
    _deadline: asyncio.TimerHandle | None = None
    _num_bytes = 0  # that arrived of what is awaited
    _request: object = None  # the latest request whose headers were complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            longest = next(iter(self.use.waiting), self)
            longest._await(None)
            longest.transport.abort()
        if not transport.is_closing():
            self._await("headers")

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self.cycle is not self._request:  # the headers of a new request are complete
            self._request = self.cycle
            self._await("body")
        elif self._awaited is None and self.cycle.response_complete:
            self._await("headers")
        self._count(len(data))
        if self._awaited == "body" and not self.cycle.more_body:
            self._await(None)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._awaited is None:  # kept alive for another request
            self.use.waiting[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._await(None)
        super().connection_lost(exc)

    def _await(self, part: Literal["headers", "body"] | None) -> None:
        """Starts waiting for a part of a request (None: for nothing)."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._awaited == "body":
            self.use.partial_bytes -= self._num_bytes
        self._num_bytes, self._awaited = 0, part
        self.use.waiting.pop(self, None)
        if part is not None:
            self.use.waiting[self] = None
            seconds = self.limits.header_s if part == "headers" else self.limits.body_s
            self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _count(self, num_bytes: int) -> None:
        """Counts received bytes, and refuses the request if there are too many."""
        self._num_bytes += num_bytes
        if self._awaited == "body":
            self.use.partial_bytes += num_bytes
            if self._num_bytes > self.limits.max_body_bytes:
                self._refuse("413 Content Too Large")
            elif self.cycle.more_body and self.use.partial_bytes > self.limits.max_partial_bytes:
                self._refuse("503 Service Unavailable")
        elif self._num_bytes > self.limits.max_header_bytes:
            self._refuse("431 Request Header Fields Too Large")

    def _refuse(self, status: str) -> None:
        if self._awaited == "headers" or not self.cycle.response_started:
            head = f"HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(head.encode())
        self.transport.close()
