"""Keeps one sandbox open, in which commands run one after another on the same files.

    async with open_session(runtime, folders, {"LANG": "C.UTF-8"}) as session:
        outcome = await session.run("make && ./a.out", timeout_s=60)
        outcome.exit_code, outcome.output

    session ── "7 60" ──> bash, process 1 of the sandbox: runs /workspace/7.sh for at most 60 s
            <── "7 0" ──  once /workspace/7.out has the output of both streams

Files, and processes that a command leaves in the background, last until the session is closed. The
sandbox needs bash and coreutils. A sandbox that ends by itself raises `LimitExceeded` if the
runtime's limits ended it, else `EnvironmentFault`.
"""

from __future__ import annotations

import asyncio
import math
import os
import shlex
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from ajet.core.errors import EnvironmentFault
from ajet.sandbox.command import GRACE_S, MAX_OUTPUT, CommandOutcome, sandbox_process
from ajet.sandbox.runtime import WORKSPACE, Folders, Runtime

TIMED_OUT = 124
"""The exit code of a command that ran past its time."""
LOOP = f"""
while read -r name seconds; do
  timeout -k 2 "$seconds" bash {WORKSPACE}/$name.sh < /dev/null > {WORKSPACE}/$name.out 2>&1
  echo "$name $?"
done
"""


class LimitExceeded(Exception):
    """The sandbox was ended by a limit; the message names it."""


class Session:
    """An open sandbox, made by `open_session`. Commands that are sent at the same time run one
    after another."""

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
        bytes. Exit code `TIMED_OUT`: it was ended after `timeout_s`, in whole seconds."""
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
            return CommandOutcome(int(line[1]), _end_of(output, max_output), "")

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
    """Starts the sandbox with `environment`, and ends it with all its processes."""
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


def _end_of(file: Path, max_bytes: int) -> str:
    """Returns the end of a file that the sandbox's programs may have replaced or removed."""
    if file.is_symlink() or not file.is_file():
        return ""
    with file.open("rb") as opened:
        opened.seek(0, os.SEEK_END)
        opened.seek(max(0, opened.tell() - max_bytes))
        return opened.read(max_bytes).decode("utf-8", "replace")
