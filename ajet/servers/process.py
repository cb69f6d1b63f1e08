"""A server process: started, watched until it is healthy, stopped with all that it started.

    server = ServerProcess(Command(["python", "-m", …], port=8100), name="r0", log_path=…)
    await server.start(healthy, deadline_s=600)      # healthy() is asked until it returns
    await server.stop()

It runs under a process guard (servers/process_guard.py) in a process group of its own, whose id is
beside the log; Ctrl-C in the terminal does not reach it, and nothing of it outlives us. A
port in use, a server that ends and one that is never healthy are one line each, with the last lines
of its log, which goes on after that of an earlier server of its name.

Not covered: what is said to the server (engines/), which machine it is on (the caller is there).
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ajet.core.errors import ModelError
from ajet.core.inference.replica import ReplicaDown
from ajet.servers import process_guard

GRACE_S = 6.0
LOG_TAIL_LINES, MAX_ERROR_CHARACTERS = 3, 160
POLL_S = 0.5
SAFE_PATH_ENVIRONMENT = {"PYTHONSAFEPATH": "1", "PYTHONPATH": ""}
"""A server runs in the user's folder, whose files must not stand in for its modules."""


@dataclass(frozen=True, slots=True)
class Command:
    """What to run. `environment` is added to ours."""

    arguments: Sequence[str]
    port: int
    host: str = "127.0.0.1"
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


class ServerProcess:
    """One server; start it once."""

    def __init__(self, command: Command, *, name: str, log_path: Path) -> None:
        self.command = command
        self.name = name
        self.log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._log_begin = 0

    @property
    def pid_path(self) -> Path:
        """Holds the id of the process group while it runs."""
        return self.log_path.with_suffix(".pid")

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self, healthy: Callable[[], Awaitable[None]], deadline_s: float) -> float:
        """Start it and wait until `healthy` returns (`ReplicaDown`: not yet); seconds it took."""
        started = time.monotonic()
        check_port(self.command.host, self.command.port, f"inference server {self.name}")
        self._launch()
        try:
            async with asyncio.timeout(deadline_s):
                while not await self._is_healthy(healthy):
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            self.stop_now()
            raise ModelError(
                f"inference server {self.name} was not healthy after {deadline_s:g} s: "
                f"{self.last_lines()}"
            ) from None
        except BaseException:
            self.stop_now()
            raise
        return time.monotonic() - started

    def check_running(self) -> None:
        """ModelError with the log's last lines where it has ended."""
        assert self._process is not None
        status = self._process.poll()
        if status is not None:
            raise ModelError(
                f"inference server {self.name} ended with status {status}: {self.last_lines()}"
            )

    def last_lines(self) -> str:
        """The end of its log in one line, and where the rest is."""
        text = ""
        if self.log_path.exists():
            text = self.log_path.read_bytes()[self._log_begin :].decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()][-LOG_TAIL_LINES:]
        told = " | ".join(line[:MAX_ERROR_CHARACTERS] for line in lines) or "it wrote nothing"
        return f"{told} (all of it in {self.log_path})"

    async def stop(self) -> None:
        """End the whole group: SIGTERM, and SIGKILL after a few seconds."""
        self._close_stdin()
        while self.is_running:
            await asyncio.sleep(0.02)

    def stop_now(self) -> None:
        """The same without a loop; waits for it."""
        self._close_stdin()
        if self._process is not None:
            self._process.wait()

    def kill(self) -> None:
        """End the group at once."""
        if self.is_running:
            assert self._process is not None
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._close_stdin()
        self.pid_path.unlink(missing_ok=True)

    def _launch(self) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        guard_command = [
            sys.executable,
            "-S",
            process_guard.__file__,
            str(GRACE_S),
            str(self.pid_path),
        ]
        with self.log_path.open("ab") as log:
            self._log_begin = log.tell()
            self._process = subprocess.Popen(
                [*guard_command, *self.command.arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.command.environment},
                start_new_session=True,
            )

    async def _is_healthy(self, healthy: Callable[[], Awaitable[None]]) -> bool:
        self.check_running()
        try:
            await healthy()
        except ReplicaDown:
            return False
        return True

    def _close_stdin(self) -> None:
        """The guard sees the end of its pipe."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()


def check_port(host: str, port: int, whose: str) -> None:
    """ModelError where somebody listens there already."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ModelError(f"{whose}: port {port} of {host}: {error.strerror}") from error


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free now. Somebody may take it before a server does: that is said then."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
