"""Runs what chaos.py puts out of order: an environment service, a PostgreSQL, a database's lock."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

from ajet.servers.process import free_port
from tests.e2e.toy_run import environment
from tests.warm_start import ROOT, WarmProcess, warm_start

UP_WITHIN_S = 120.0
SERVICE = '''
import sys
from pathlib import Path

import uvicorn
from fastapi import Response

from ajet.environments.frozen_lake import FrozenLake
from ajet.environments.env_service.server import make_app


class Lake(FrozenLake):
    """A lake without rules: the embedded model knows the grid alone."""

    def __init__(self):
        super().__init__(size=4, show_position=True)
        self.instruction = ""


port, mood = int(sys.argv[1]), Path(sys.argv[2])
app = make_app({"frozen_lake": Lake})
answers = {"refuses": (503, "{}"), "babbles": (200, "<html>once upon a time</html>")}


@app.middleware("http")
async def in_that_mood(request, call_next):
    if mood.exists():
        status, content = answers[mood.read_text()]
        return Response(content, status)
    return await call_next(request)


uvicorn.run(app, port=port, log_level="error")
'''


class LakeService:
    """Serves frozen lakes over HTTP from a process of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._mood, self._log = folder / "mood", folder / "service.log"
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._process = self._started()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @contextmanager
    def out_of_order(self, harm: str) -> Iterator[None]:
        """Kills, stops or confuses the service; it is well again after the block."""
        if harm == "service dies":
            self._process.kill()
            self._process.wait()
            yield
            self._process = self._started()
        elif harm == "service hangs":
            self._process.send_signal(signal.SIGSTOP)
            yield
            self._process.send_signal(signal.SIGCONT)
        else:
            new = self._mood.with_suffix(".new")
            new.write_text(harm.removeprefix("service "))
            new.rename(self._mood)
            yield
            self._mood.unlink()

    def _started(self) -> WarmProcess:
        line = ["-c", SERVICE, str(self._port), str(self._mood)]
        with self._log.open("a") as log:
            out = log.fileno()
            process = warm_start(line, cwd=ROOT, env=environment(), stdout=out, stderr=out)
        _wait_for(self._port)
        return process


class PostgresqlServer:
    """Runs a PostgreSQL of its own on loopback, with a database `chaos`. As root its programs run
    as the user postgres, whom Debian's package makes."""

    def __init__(self) -> None:
        self._user = "postgres" if os.geteuid() == 0 else None
        self._port = free_port()
        self.url = f"postgresql+psycopg://chaos@127.0.0.1:{self._port}/postgres"

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="chaos_postgresql_")
        Path(self._folder.name).chmod(0o777)
        self._data = f"{self._folder.name}/data"
        self._call("initdb", "-D", self._data, "-U", "chaos", "--auth=trust")
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._call("pg_ctl", "-D", self._data, "stop", "-m", "immediate")
        self._folder.cleanup()

    @contextmanager
    def out_of_order(self, harm: str) -> Iterator[None]:
        """Kills the server with all its processes, and starts it again after the block."""
        assert harm == "postgresql dies"
        self._call("pg_ctl", "-D", self._data, "stop", "-m", "immediate")
        yield
        self._start()

    def _start(self) -> None:
        options = f"-p {self._port} -k {self._folder.name} -c listen_addresses=127.0.0.1"
        log = f"{self._folder.name}/log"
        self._call("pg_ctl", "-D", self._data, "-o", options, "-l", log, "-w", "start")

    def _call(self, program: str, *arguments: str) -> None:
        # Debian keeps the server's programs out of the search path.
        newest = max(map(str, Path("/usr/lib/postgresql").glob("*/bin")), default="")
        env = os.environ | {"PATH": f"{newest}:{os.environ['PATH']}"}
        done = subprocess.run(
            [program, *arguments],
            user=self._user,
            env=env,
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{program} {arguments[0]} ended with {done.returncode}")


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Holds the lock with which a process writes into an SQLite database."""
    with closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + UP_WITHIN_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
