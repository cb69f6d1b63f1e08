"""Runs whole programs in a sandbox: one, or one command after another on the same files.

outcome = await run_command(runtime, ["pytest", "-q"], folders, environment={}, port=None)
async with open_session(runtime, folders, {"LANG": "C.UTF-8"}) as session:
    outcome = await session.run("make && ./a.out", timeout_s=60)
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shlex
import signal
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ajet.core.errors import EnvironmentFault
from ajet.core.process.process_guard import guarded
from ajet.sandbox.limits import bounded_processes
from ajet.sandbox.runtime import SYSTEM_PATH, WORKSPACE, Folders, Runtime

GRACE_S = 1.0
"""How long a program may take to end after SIGTERM."""
MAX_OUTPUT = 1 << 16
_CHUNK = 1 << 16
TIMED_OUT = 124
"""The exit code of a command that ran past its time."""
LOOP = f"""
while read -r name seconds; do
  timeout -k 2 "$seconds" bash {WORKSPACE}/$name.sh < /dev/null > {WORKSPACE}/$name.out 2>&1
  echo "$name $?"
done
"""


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
    """Runs the program in `folders.workspace`, with an empty standard input and none of ajet's
    environment variables. `port` is the only port of the host's loopback that it reaches. Keeps the
    last `max_output` bytes of each stream. The caller sets a deadline (`asyncio.timeout`)."""
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
    descendants. It also ends when ajet does, in whatever way (core/process/process_guard.py), and
    when it exceeds the runtime's limits."""
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


class LimitExceeded(Exception):
    """The sandbox was ended by a limit; the message names it."""


class Session:
    """An open sandbox, made by `open_session`. Commands that are sent at the same time run one
    after another; files, and processes that a command leaves in the background, last until the
    session is closed.

        session ── "7 60" ──> bash, process 1 of the sandbox: runs /workspace/7.sh for at most 60 s
                <── "7 0" ──  once /workspace/7.out has the output of both streams
    """

    def __init__(self, process: asyncio.subprocess.Process, folders: Folders) -> None:
        self._process = process
        self._folders = folders
        self._lock = asyncio.Lock()
        self._num_commands = 0

    async def run(
        self,
        command: str,
        *,
        timeout_s: float,
        environment: Mapping[str, str] | None = None,
        max_output: int = MAX_OUTPUT,
    ) -> CommandOutcome:
        """Runs a command of bash; its `output` is the end of both streams, at most `max_output`
        bytes. Exit code `TIMED_OUT`: it was ended after `timeout_s`, in whole seconds. Raises
        `LimitExceeded` if the runtime's limits ended the sandbox, `EnvironmentFault` if it ended by
        itself."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        async with self._lock:
            self._num_commands += 1
            name = str(self._num_commands)
            script, output = (self._folders.workspace / f"{name}.{end}" for end in ("sh", "out"))
            exports = (f"export {key}={shlex.quote(v)}\n" for key, v in (environment or {}).items())
            script.write_text("".join(exports) + command + "\n", encoding="utf-8")
            with suppress(ConnectionError):  # it has ended, which reading shows
                stdin.write(f"{name} {math.ceil(timeout_s)}\n".encode())
                await stdin.drain()
            # Of a command whose caller was cancelled, the line is still to come.
            while (line := (await stdout.readline()).decode().split())[:1] != [name]:
                if not line:
                    raise await self._end()
            return CommandOutcome(int(line[1]), _file_end(output, max_output), "")

    async def _end(self) -> Exception:
        assert self._process.stderr is not None
        errors = (await self._process.stderr.read()).decode("utf-8", "replace").strip()
        code = await self._process.wait()
        if self._folders.report.exists():
            return LimitExceeded(self._folders.report.read_text())
        last = errors.splitlines()[-1] if errors else f"exit code {code}"
        return EnvironmentFault(f"the sandbox ended: {last}")


@asynccontextmanager
async def open_session(
    runtime: Runtime, folders: Folders, environment: Mapping[str, str]
) -> AsyncGenerator[Session, None]:
    """Starts the sandbox, which needs bash and coreutils, with `environment`, and ends it with all
    its processes."""
    loop, pipe = ["bash", "-c", LOOP], asyncio.subprocess.PIPE
    async with sandbox_process(
        runtime, loop, folders, environment, port=None, stdin=pipe
    ) as process:
        try:
            yield Session(process, folders)
        finally:
            # Its bash ends with its input, unless a command is running.
            assert process.stdin is not None
            process.stdin.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), GRACE_S)


def _file_end(file: Path, max_bytes: int) -> str:
    """Returns the end of a file that the sandbox's programs may have replaced or removed."""
    if file.is_symlink() or not file.is_file():
        return ""
    with file.open("rb") as opened:
        opened.seek(0, os.SEEK_END)
        opened.seek(max(0, opened.tell() - max_bytes))
        return opened.read(max_bytes).decode("utf-8", "replace")
