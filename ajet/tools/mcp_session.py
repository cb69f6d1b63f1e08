"""Opens and closes connections to MCP servers without leaving a process behind.

The `mcp` package requires that the task which opened a connection closes it, and an episode's task
may be cancelled at any time: so each connection lives in a task of a background thread's loop.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlsplit

from ajet.core.errors import EnvironmentFault
from ajet.core.text.error_text import first_line, one_line
from ajet.tools.mcp_stdio import McpLineTooLong, stdio_streams

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream
    from mcp import ClientSession
    from mcp.types import CallToolResult, Tool

START_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 8.0
"""Seconds after which a connection that does not close is abandoned; more than END_WAITS_S."""
MAX_TOOLS_CHARACTERS = 16_000_000
"""The limit on the descriptions of all tools of a server, over all pages of its list."""
LAST_WORDS_BYTES = 10_000
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class McpAddress:
    """How a server is reached: `command` starts one, `url` names one that is running."""

    command: str | None = None
    args: Sequence[str] = ()
    env: dict[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    url: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    transport: Literal["http", "sse"] = "http"

    def __str__(self) -> str:
        """Returns the address without the parts that may be secret (query, arguments, user and
        password), because this text is shown to the model and recorded."""
        if self.url is not None:
            try:
                address = urlsplit(self.url)
            except ValueError:
                return "(an address that cannot be read)"
            return f"{address.scheme}://{address.netloc.rpartition('@')[2]}"
        scripts = (arg for arg in self.args[:1] if arg.endswith((".py", ".js")))
        return " ".join(Path(part).name for part in (self.command or "", *scripts))


class McpConnectionLost(Exception):
    """The server does not answer any more."""


class McpSession:
    """An open connection to a server. `tools` are those that the server offers. Methods that begin
    with an underscore run in the background loop. A server over stdio (mcp_stdio.py) runs under a
    process guard: it ends even when this process is killed."""

    def __init__(self, address: McpAddress) -> None:
        self.address = address
        self.tools: list[Tool] = []
        self._session: ClientSession | None = None
        self._ready, self._closing = asyncio.Event(), asyncio.Event()
        self._connection_task: asyncio.Task[None] | None = None
        self._incoming: MemoryObjectReceiveStream[Any] | None = None
        self._is_gone = False

    @property
    def is_alive(self) -> bool:
        if self._connection_task is None or self._connection_task.done() or self._is_gone:
            return False
        return self._incoming is not None and self._incoming.statistics().open_send_streams > 0

    async def call(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        """Returns the server's answer; raises `McpConnectionLost` if the server is gone."""
        return await _in_background(self._call(name, arguments))

    async def close(self) -> None:
        """Closes the connection, and ends the server if this process started it."""
        await _in_background(self._close())

    async def _start(self) -> None:
        with tempfile.TemporaryFile() as stderr_file:
            self._connection_task = asyncio.create_task(self._hold_open(stderr_file))
            ready = asyncio.create_task(self._ready.wait())
            try:
                await asyncio.wait(
                    {self._connection_task, ready},
                    timeout=START_TIMEOUT_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                ready.cancel()
            if self._ready.is_set():
                _open_sessions.add(self)
                return
            if self._connection_task.done():
                error = _fault_of(self._connection_task)
                reason = one_line(error) if error else "it ended"
            else:
                reason = f"no answer in {START_TIMEOUT_S:g} s"
            await self._close()  # before its output is read, so that nothing more is written
            last = _last_line(stderr_file)
        detail = f"{reason}; its last words: {last}" if last else reason
        if self.address.url is not None:  # httpx's errors contain the whole address
            detail = detail.replace(self.address.url, str(self.address))
        raise EnvironmentFault(f"MCP server {str(self.address)!r} does not start: {detail}")

    async def _hold_open(self, stderr_file: IO[bytes]) -> None:
        """Opens the connection and keeps it open until `_closing` is set, all in one task."""
        from mcp import ClientSession

        async with (
            _streams(self.address, stderr_file) as (read, write),
            ClientSession(read, write) as session,
        ):
            self._incoming = read
            await session.initialize()
            self.tools = await _all_tools(session)
            self._session = session
            self._ready.set()
            await self._closing.wait()

    async def _call(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        from anyio import BrokenResourceError, ClosedResourceError
        from mcp import McpError
        from mcp.types import (
            CONNECTION_CLOSED,
            CallToolRequest,
            CallToolRequestParams,
            CallToolResult,
            ClientRequest,
        )

        assert self._session is not None and self._connection_task is not None
        params = CallToolRequestParams(name=name, arguments=arguments)
        request = ClientRequest(CallToolRequest(params=params))
        # Not `call_tool`: it validates the answer against a schema of the server, whose regular
        # expressions may take forever and block every other connection.
        call = asyncio.create_task(self._session.send_request(request, CallToolResult))
        try:
            # A call whose server died is never answered, so the end of the connection counts too.
            await asyncio.wait({call, self._connection_task}, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return call.result()
        except (BrokenResourceError, ClosedResourceError):
            pass
        except McpError as error:
            # A server may answer with this code while the connection is alive.
            if error.error.code != CONNECTION_CLOSED or self.is_alive:
                raise
        finally:
            call.cancel()
        self._is_gone = True
        fault = _fault_of(self._connection_task)
        reason = f": {fault}" if isinstance(fault, McpLineTooLong) else ""
        raise McpConnectionLost(f"MCP server {str(self.address)!r} is gone{reason}")

    async def _close(self) -> None:
        if self._connection_task is None:
            return
        _open_sessions.discard(self)
        self._closing.set()
        if not self._ready.is_set():  # it is still starting and does not look at `_closing`
            self._connection_task.cancel()
        done, _ = await asyncio.wait({self._connection_task}, timeout=CLOSE_TIMEOUT_S)
        for connection_task in done:
            if not connection_task.cancelled():
                connection_task.exception()  # marks it as retrieved


async def open_session(address: McpAddress) -> McpSession:
    """Opens a connection; raises `EnvironmentFault` with the server's last line of output if that
    fails."""
    session = McpSession(address)
    try:
        await _in_background(session._start())
    except asyncio.CancelledError:
        await session.close()  # the start goes no further, but its server may be running
        raise
    return session


@asynccontextmanager
async def _streams(
    address: McpAddress, stderr_file: IO[bytes]
) -> AsyncGenerator[tuple[Any, Any], None]:
    if address.command is not None:
        from mcp.client.stdio import get_default_environment

        program = sys.executable if address.command == "python" else address.command
        command = [program, *address.args]
        # A server starts in another folder, where a relative PYTHONPATH would lead nowhere.
        folders = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        python_path = os.pathsep.join(str(Path(folder).resolve()) for folder in folders)
        env = get_default_environment()
        env |= ({"PYTHONPATH": python_path} if python_path else {}) | address.env
        async with stdio_streams(command, env, address.cwd, stderr_file) as streams:
            yield streams
    elif address.transport == "sse":
        from mcp.client.sse import sse_client

        async with sse_client(
            address.url or "", headers=address.headers, httpx_client_factory=_http_client
        ) as streams:
            yield streams
    else:
        from mcp.client.streamable_http import streamable_http_client

        async with (
            _http_client(headers=address.headers) as client,
            streamable_http_client(address.url or "", http_client=client) as (read, write, _),
        ):
            yield read, write


def _http_client(headers: Any = None, timeout: Any = None, auth: Any = None) -> Any:
    """Returns a client with the mcp package's timeouts, whose answers are limited in size."""
    import httpx
    from mcp.shared._httpx_utils import MCP_DEFAULT_SSE_READ_TIMEOUT, MCP_DEFAULT_TIMEOUT

    from ajet.core.net.http_client import LimitedAsyncClient

    default = httpx.Timeout(MCP_DEFAULT_TIMEOUT, read=MCP_DEFAULT_SSE_READ_TIMEOUT)
    return LimitedAsyncClient(headers=headers, timeout=timeout or default, auth=auth)


async def _all_tools(session: ClientSession) -> list[Tool]:
    """Returns the server's tools, which it lists page by page."""
    tools: list[Tool] = []
    num_characters, cursor = 0, None
    while True:
        page = await session.list_tools(cursor)
        tools += page.tools
        num_characters += len(page.model_dump_json())
        if num_characters > MAX_TOOLS_CHARACTERS:
            raise ValueError(f"its tools take more than {MAX_TOOLS_CHARACTERS} characters")
        if not (cursor := page.nextCursor):
            return tools


def _fault_of(connection_task: asyncio.Task[None]) -> BaseException | None:
    if not connection_task.done() or connection_task.cancelled():
        return None
    error = connection_task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _last_line(stderr_file: IO[bytes]) -> str:
    stderr_file.seek(max(0, stderr_file.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
    lines = stderr_file.read().decode("utf-8", "replace").splitlines()
    return next((first_line(line) for line in reversed(lines) if line.strip()), "")


# --- the background loop ------------------------------------------------------------------------

_open_sessions: set[McpSession] = set()
_starting = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_process_id = 0  # of the process whose thread runs the loop


async def _in_background(work: Coroutine[Any, Any, Result]) -> Result:
    """Runs `work` in the background loop and returns its result. Cancelling this call cancels
    `work` there."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, _background()))


def _background() -> asyncio.AbstractEventLoop:
    import mcp

    global _loop, _process_id
    with _starting:
        # A forked child inherits the variable `_loop` but not the thread that runs it.
        if _loop is None or _process_id != os.getpid():
            _loop, _process_id = asyncio.new_event_loop(), os.getpid()
            threading.Thread(target=_loop.run_forever, name="ajet-mcp", daemon=True).start()
            atexit.register(close_all)
            # The mcp package's logs, which quote the servers, are dropped; this module reports its
            # errors. mcp/shared/session.py logs to the root logger.
            folder = str(Path(mcp.__file__).parent)
            logging.getLogger("mcp").propagate = False
            logging.getLogger("mcp").addHandler(logging.NullHandler())
            logging.getLogger().addFilter(lambda record: not record.pathname.startswith(folder))
    return _loop


def close_all() -> None:
    """Closes every open connection, and ends the servers that were started for them."""
    if _loop is None or _process_id != os.getpid() or not _open_sessions:
        return

    async def close() -> None:
        await asyncio.gather(*(session._close() for session in list(_open_sessions)))

    asyncio.run_coroutine_threadsafe(close(), _loop).result(CLOSE_TIMEOUT_S + 1)
