"""Exchanges messages with an MCP server over its standard streams, one per line. POSIX only.

The mcp package's client collects a line of any length, in quadratic time. A line that holds no
message of MCP is ignored, because servers print to their standard output too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

from ajet.core.process.process_guard import guarded
from ajet.core.text.plain_value import without_surrogates

END_WAITS_S = (2.0, 5.0)
"""Seconds that a server has to end once its standard input is closed, and then after SIGTERM."""
SERVER_GRACE_S = 1.0
"""Seconds between the guard's SIGTERM and SIGKILL."""
MAX_LINE_BYTES = 16 << 20


class McpLineTooLong(Exception):
    """The server sent a longer line than MAX_LINE_BYTES."""


@asynccontextmanager
async def stdio_streams(
    command: Sequence[str], env: Mapping[str, str], cwd: Path | None, stderr_file: IO[bytes]
) -> AsyncGenerator[tuple[Any, Any], None]:
    """Starts the command under a process guard, and yields the streams that an mcp `ClientSession`
    reads and writes."""
    import anyio
    from mcp.shared.message import SessionMessage

    process = await asyncio.create_subprocess_exec(
        *guarded(command, grace_s=SERVER_GRACE_S),
        stdin=PIPE,
        stdout=PIPE,
        stderr=stderr_file,
        env=env,
        cwd=cwd,
        start_new_session=True,
        limit=MAX_LINE_BYTES,
    )
    to_session, incoming = anyio.create_memory_object_stream[SessionMessage](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as both_ways:
            both_ways.start_soon(_read, process, to_session)
            both_ways.start_soon(_write, process, from_session)
            yield incoming, outgoing
            both_ways.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)


async def _read(process: Process, to_session: Any) -> None:
    from mcp.shared.message import SessionMessage

    assert process.stdout is not None
    async with to_session:
        while True:
            try:
                line = await process.stdout.readuntil()
            except asyncio.IncompleteReadError:  # the end of its output
                return
            except asyncio.LimitOverrunError:
                size = f"{MAX_LINE_BYTES >> 20} MiB"
                raise McpLineTooLong(f"it sent a line of more than {size}") from None
            try:
                message = _message(line)
            except (ValueError, RecursionError):
                # Lines that have arrived are read without yielding to the loop; a server that
                # prints a lot must not block the other connections.
                await asyncio.sleep(0)
            else:
                await to_session.send(SessionMessage(message))


def _message(line: bytes) -> Any:
    """Returns the line's message. Text that is cut within a character (by a server in JavaScript)
    or is not UTF-8 is read with a mark in its place: else the call would never be answered."""
    from mcp.types import JSONRPCMessage
    from pydantic import ValidationError

    try:
        return JSONRPCMessage.model_validate_json(line)
    except ValidationError:
        if b'"jsonrpc"' not in line:
            raise
        value = json.loads(line.decode("utf-8-sig", "replace"))
        text = without_surrogates(json.dumps(value, ensure_ascii=False))
        return JSONRPCMessage.model_validate_json(text)


async def _write(process: Process, from_session: Any) -> None:
    assert process.stdin is not None
    async with from_session:
        async for item in from_session:
            text = item.message.model_dump_json(by_alias=True, exclude_none=True)
            process.stdin.write(text.encode() + b"\n")
            await process.stdin.drain()


async def _end(process: Process) -> None:
    """Ends the server. Its output is read to the end: asyncio's `wait` returns only then."""
    assert process.stdin is not None
    process.stdin.close()
    for wait_s, stop in zip(END_WAITS_S, (process.terminate, process.kill), strict=True):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await _wait_for_end(process)
                return
        with contextlib.suppress(ProcessLookupError):
            stop()
    await _wait_for_end(process)


async def _wait_for_end(process: Process) -> None:
    assert process.stdout is not None
    while await process.stdout.read(1 << 16):
        pass
    await process.wait()
