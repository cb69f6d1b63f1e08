"""Two hosts made of this machine: each has a network, a name and files of its own.

    with two_hosts() as hosts:
        hosts[0].address                          10.77.0.1
        hosts[0].path("/tmp/project")             where this process finds that folder of the host
        hosts[0].start(["python", …], cwd="/tmp/project", output=file)

Each host's name resolves to 127.0.1.1, and the two share what is installed (/usr, ajet and its
Python) and nothing else that is written: `/tmp`, where everything of the test is, and `/dev/shm`
are the host's own. It needs the right to make networks, as tests/two_networks.py does.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.processes import until_gone
from tests.two_networks import Machine, two_networks

ENTER = 'mount --bind "$1" /dev/shm; mount --bind "$2" /tmp; cd "$3"; shift 3; exec "$@"'
HOME = "/tmp/home"
GONE_WITHIN_S = 20.0


@dataclass
class Host:
    """One of the two; `start` and `run` take folders as the host's own programs see them."""

    machine: Machine
    temporary: Path
    shared_memory: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return self.machine.address

    def path(self, path: str) -> Path:
        """Returns where this process finds a file below the host's /tmp."""
        return self.temporary / Path(path).relative_to("/tmp")

    def start(
        self,
        command: Sequence[str],
        *,
        cwd: str = HOME,
        output: IO[str] | int = subprocess.PIPE,
        **variables: str,
    ) -> subprocess.Popen[str]:
        enter = ["sh", "-c", ENTER, "sh", str(self.shared_memory), str(self.temporary), cwd]
        return subprocess.Popen(
            [*self.machine.command, *enter, *command],
            env=self.environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(
        self, *command: str, cwd: str = HOME, timeout: float = 300, **variables: str
    ) -> tuple[int, str]:
        """Runs a program to its end; returns its exit code and what it has printed. What it leaves
        in the background may keep its output open, so that goes to a file."""
        with tempfile.TemporaryFile("w+") as output:
            code = self.start(command, cwd=cwd, output=output, **variables).wait(timeout)
            output.seek(0)
            return code, output.read()

    def processes(self) -> set[int]:
        """Returns all processes in the host's network."""
        done = subprocess.run(
            ["ip", "netns", "pids", self.machine.network], capture_output=True, text=True
        )
        return set(map(int, done.stdout.split()))

    def end_processes(self) -> None:
        """Kills all processes of the host, as if its plug were pulled."""
        while pids := self.processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            assert not until_gone(pids, GONE_WITHIN_S)


@contextmanager
def two_hosts(*, family: int = 4) -> Iterator[list[Host]]:
    with two_networks(family=family) as machines, tempfile.TemporaryDirectory() as folder:
        hosts = [_host(machine, Path(folder)) for machine in machines]
        try:
            yield hosts
        finally:
            for host in hosts:
                host.end_processes()
                shutil.rmtree(host.shared_memory)


def _host(machine: Machine, folder: Path) -> Host:
    temporary = folder / machine.network
    shared_memory = Path("/dev/shm") / machine.network
    for each in (temporary, temporary / "home", shared_memory):
        each.mkdir(mode=0o777)
    return Host(machine, temporary, shared_memory, _environment())


def _environment() -> dict[str, str]:
    """Returns what a login on the host has: no variable of Ray's, and a home of its own."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return own | {"HOME": HOME, "PATH": path, "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
