"""A server process: started, watched until it is healthy, and stopped with its children."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.inference.replica import ReplicaDown
from ajet.core.process.process_guard import guarded

GRACE_S = 6.0
LOG_TAIL_LINES, MAX_ERROR_CHARACTERS = 3, 160
POLL_S = 0.5
SAFE_PATH_ENVIRONMENT = {"PYTHONSAFEPATH": "1", "PYTHONPATH": ""}
"""Files of the user's folder, in which a server runs, must not shadow its modules."""


@dataclass(frozen=True, slots=True)
class Command:
    """The command line of a server and its address. `environment` is added to this process's."""

    arguments: Sequence[str]
    port: int
    host: str = "127.0.0.1"
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


class ServerProcess:
    """The process of one server; it can be started only once. It runs under a process guard
    (core/process/process_guard.py), so that none of its processes outlives this one, in a new
    process group, so that Ctrl-C in the terminal does not reach it."""

    def __init__(self, command: Command, *, name: str, log_path: Path) -> None:
        self.command = command
        self.name = name
        self.log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._log_begin = 0

    @property
    def pid_path(self) -> Path:
        """The file with the id of the process group while it runs."""
        return self.log_path.with_suffix(".pid")

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self, healthy: Callable[[], Awaitable[None]], deadline_s: float) -> float:
        """Starts the server and waits until `healthy` returns; `ReplicaDown` means not yet. Returns
        the seconds this took. Raises ModelError with the log's last lines."""
        started = time.monotonic()
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            host, port = self.command.host, self.command.port
            try:
                probe.bind((host, port))
            except OSError as error:
                raise ModelError(
                    f"inference server {self.name}: port {port} of {host}: {error.strerror}",
                    code=Code.SERVER_NOT_STARTED,
                ) from error
        self._launch()
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    self.check_running()
                    with suppress(ReplicaDown):
                        await healthy()
                        break
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            self.stop_now()
            raise ModelError(
                f"inference server {self.name} was not healthy after {deadline_s:g} s: "
                f"{self.last_lines()}",
                code=Code.SERVER_NOT_STARTED,
            ) from None
        except BaseException:
            self.stop_now()
            raise
        return time.monotonic() - started

    def check_running(self) -> None:
        """Raises a ModelError with the log's last lines if the server has ended."""
        assert self._process is not None
        status = self._process.poll()
        if status is not None:
            raise ModelError(
                f"inference server {self.name} ended with status {status}: {self.last_lines()}",
                code=Code.SERVER_NOT_STARTED,
            )

    def last_lines(self) -> str:
        """Returns the end of this start's log in one line, and the path of the log."""
        text = ""
        if self.log_path.exists():
            text = self.log_path.read_bytes()[self._log_begin :].decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()][-LOG_TAIL_LINES:]
        tail = " | ".join(line[:MAX_ERROR_CHARACTERS] for line in lines) or "it wrote nothing"
        return f"{tail} (all of it in {self.log_path})"

    async def stop(self) -> None:
        """Ends the server and its children: SIGTERM, and SIGKILL after a few seconds."""
        if self._process is not None:
            self._process.terminate()
        while self.is_running:
            await asyncio.sleep(0.02)

    def stop_now(self) -> None:
        """Stops the server like `stop`, but blocks and needs no event loop."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def _launch(self) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        command = guarded(self.command.arguments, grace_s=GRACE_S, pid_file=self.pid_path)
        with self.log_path.open("ab") as log:
            self._log_begin = log.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.command.environment},
                start_new_session=True,
            )


def free_port() -> int:
    """Returns a port that is free now; the server's start fails if another process takes it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
