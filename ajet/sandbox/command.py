"""Runs one whole program in a sandbox and returns its exit code and the end of its output.

    outcome = await run_command(runtime, ["pytest", "-q"], folders, environment={}, port=None)
    outcome.exit_code, outcome.output

The program ends, with all its descendants, when the awaiting task is cancelled, when ajet ends in
whatever way (core/process/process_guard.py), and when it exceeds the runtime's limits. It gets none
of ajet's environment variables. The caller sets a deadline (`asyncio.timeout`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ajet.core.process.process_guard import guarded
from ajet.sandbox.cgroup import bounded_processes
from ajet.sandbox.runtime import SYSTEM_PATH, Folders, Runtime

GRACE_S = 1.0
"""How long a program may take to end after SIGTERM."""
MAX_OUTPUT = 1 << 16
_CHUNK = 1 << 16


@dataclass(frozen=True)
class CommandOutcome:
    """How a program ended. `output` and `errors` are the ends of its standard output and standard
    error; `exceeded` is one line about the limit that ended it, if one did."""

    exit_code: int
    output: str
    errors: str
    exceeded: str | None = None


async def run_command(
    runtime: Runtime,
    command: Sequence[str],
    folders: Folders,
    *,
    environment: Mapping[str, str],
    port: int | None,
    max_output: int = MAX_OUTPUT,
) -> CommandOutcome:
    """Runs the program in `folders.workspace`, with an empty standard input. `port` is the only
    port of the host's loopback that it reaches. Keeps the last `max_output` bytes of each
    stream."""
    home = folders.inside(runtime)[1]
    variables = {"PATH": SYSTEM_PATH, "HOME": home, "LANG": "C.UTF-8", "TERM": "dumb", "TZ": "UTC"}
    variables |= environment
    async with sandbox_process(runtime, command, folders, variables, port=port) as process:
        assert process.stdout is not None and process.stderr is not None
        output, errors = await asyncio.gather(
            _end_of(process.stdout, max_output), _end_of(process.stderr, max_output)
        )
        exit_code = await process.wait()
        exceeded = folders.report.read_text() if folders.report.exists() else None
        return CommandOutcome(exit_code, output, errors, exceeded)


@asynccontextmanager
async def sandbox_process(
    runtime: Runtime,
    command: Sequence[str],
    folders: Folders,
    variables: Mapping[str, str],
    *,
    port: int | None,
    stdin: int = asyncio.subprocess.DEVNULL,
) -> AsyncGenerator[asyncio.subprocess.Process, None]:
    """Starts a program in its sandbox, with pipes for both of its streams, and ends it with all its
    descendants."""
    folders.report.unlink(missing_ok=True)
    most = None if runtime.has_image else runtime.most_processes  # containers have bounds
    with bounded_processes(folders.name, most) as group:
        process = await asyncio.create_subprocess_exec(
            *guarded(runtime.command(command, folders, variables, port, group), grace_s=GRACE_S),
            cwd=folders.workspace,
            # The client of podman or docker needs ajet's environment; its program gets `variables`.
            env=os.environ if runtime.has_image else variables,
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                await asyncio.shield(_end(process))
            if runtime.has_image:
                await asyncio.to_thread(runtime.remove_containers, folders)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Has the guard end the program, and waits for that."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    await process.wait()


async def _end_of(stream: asyncio.StreamReader, max_bytes: int) -> str:
    """Reads a stream to its end and returns its last `max_bytes` as text."""
    kept = b""
    while chunk := await stream.read(_CHUNK):
        kept = (kept + chunk)[-max_bytes:]
    return kept.decode("utf-8", "replace")
