"""Starts `python -m MODULE` and `python -c CODE` as forks of a process that has imported ajet.

    process = warm_start(["-m", "ajet.cli.launcher", "--conf", "toy.yaml"], cwd=folder, env=…)
    write_warm_ajet(folder / "ajet")       a program that does what the command `ajet` does

Importing torch and transformers takes most of a tiny run's time, and half of the rest goes into
what a process does once: its first config, and transformers' table of the names of
weights. The first call starts a server with one thread, which does all that; each run is a fork of
it, in a session of its own, with the arguments, environment, folder and files that were asked for.
What the server has made is left out of garbage collection, which would take a second at the end of
each run. What is read while Python or a library starts (PYTHONUTF8, the locale, OMP_NUM_THREADS) is
that of the server, and so is the command line that the system shows: a test of those starts a fresh
interpreter. For each LD_PRELOAD, and each command that Python runs under, there is a server of its
own.
"""

import contextlib
import functools
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMPORTS = (
    "ajet.backbones.debug.debugging",
    "ajet.backbones.debug.training",
    "ajet.backbones.disaggregated.backbone",
    "ajet.backbones.evaluating",
    "ajet.assembly",
    "ajet.cli.train",
    "ajet.cli.preflight",
    "ajet.cli.process_end",
    "ajet.core.record.run_log",
    "ajet.core.task.jsonl",
    "ajet.core.workflow.gateway.gateway",
    "ajet.read.reports.summary_table",
    "ajet.tool_parsers",
    "hydra",
    "hydra.core.override_parser.overrides_parser",
    "hydra.utils",
    "tensorboard.summary.writer.event_file_writer",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen2.tokenization_qwen2",
)

_one_at_a_time = threading.Lock()


class WarmProcess:
    """A run that was started warm: as much of `subprocess.Popen` as the tests use."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("r")
        self.pid = int(self._file.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(TimeoutError, subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code, as Popen does: -9 after a SIGKILL."""
        if self.returncode is None:
            ready = selectors.DefaultSelector()
            ready.register(self._connection, selectors.EVENT_READ)
            if not ready.select(timeout):
                raise subprocess.TimeoutExpired("a warm start", timeout or 0)
            self.returncode = int(self._file.readline())
            self._file.close()
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def warm_start(
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: int | None = None,
    stdout: int,
    stderr: int,
    under: tuple[str, ...] = (),
) -> WarmProcess:
    """Starts what `python ARGUMENTS` would, or `UNDER python ARGUMENTS`, which has a server of its
    own: `under` is a command such as setpriv. The standard streams are file descriptors."""
    ours, theirs = socket.socketpair()
    request = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(env)}
    data = json.dumps(request).encode()
    with theirs, Path(os.devnull).open() as nothing, _one_at_a_time:
        files = (nothing.fileno() if stdin is None else stdin, stdout, stderr)
        server = _server(under, env.get("LD_PRELOAD", ""))
        socket.send_fds(server, [len(data).to_bytes(4)], [theirs.fileno(), *files])
        server.sendall(data)
    return WarmProcess(ours)


def warm_run(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Does what `python ARGUMENTS` does, to its end, as `subprocess.run` does with its output as
    text."""
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        files = {"stdout": stdout.fileno(), "stderr": stderr.fileno()}
        process = warm_start(arguments, cwd=cwd, env=env, **files)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        said = []
        for file in (stdout, stderr):
            file.seek(0)
            said.append(file.read())
    return subprocess.CompletedProcess(list(arguments), code, *said)


WARM_AJET = """#!{python} -IS
import json, os, signal, socket, sys
code = "import sys; sys.path[0] = {binaries!r}; from ajet.cli.launcher import main; main()"
request = {{"arguments": ["-c", code, *sys.argv[1:]], "cwd": os.getcwd(), "env": dict(os.environ)}}
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    data = json.dumps(request).encode()
    socket.send_fds(server, [len(data).to_bytes(4)], [0, 1, 2])
    server.sendall(data)
    answers = server.makefile()
    pid = int(answers.readline())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: os.kill(pid, number))
    code = int(answers.readline())
    sys.exit(code if code >= 0 else 128 - code)
"""


def write_warm_ajet(file: Path) -> None:
    """Writes a program that is the command `ajet` for a shell, as long as this process lives."""
    address = f"{file}.socket"
    binaries = str(Path(sys.executable).parent)
    text = WARM_AJET.format(python=sys.executable, binaries=binaries, address=address)
    file.write_text(text)
    file.chmod(0o755)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    threading.Thread(target=_hand_over, args=(listener,), daemon=True).start()


def _hand_over(listener: socket.socket) -> None:
    """Gives the server each request that comes; it answers the program itself."""
    while True:
        asked, _ = listener.accept()
        size, files, _, _ = socket.recv_fds(asked, 4, 3)
        data = asked.recv(int.from_bytes(size), socket.MSG_WAITALL)
        with asked, _one_at_a_time:
            server = _server((), "")
            socket.send_fds(server, [size], [asked.fileno(), *files])
            server.sendall(data)
        for each in files:
            os.close(each)


@functools.cache
def _server(under: tuple[str, ...], preload: str) -> socket.socket:
    """The connection to the server; it ends when this process has gone."""
    ours, theirs = socket.socketpair()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "LD_PRELOAD": preload}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    )
    with theirs:
        subprocess.Popen(
            [*under, sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            start_new_session=True,
        )
    return ours


def prepare() -> None:
    """Does what each run would otherwise do for the first time."""
    gc.disable()  # what is imported stays
    for name in IMPORTS:
        __import__(name)
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    from ajet.core.config import load_config

    load_config(ROOT / "tutorial" / "example_math_agent" / "demo.yaml", ["ajet.seed=0"])
    get_checkpoint_conversion_mapping("qwen2")


def serve(connection: socket.socket) -> list[str]:
    """Forks a process for each request. Returns in such a process alone, with its arguments."""
    selector = selectors.DefaultSelector()
    selector.register(connection, selectors.EVENT_READ)
    running: dict[int, tuple[int, socket.socket]] = {}  # by the descriptor of the process
    while True:
        for key, _ in selector.select():
            if key.fd in running:
                pid, asked = running.pop(key.fd)
                selector.unregister(key.fd)
                os.close(key.fd)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(OSError), asked:
                    asked.sendall(f"{status}\n".encode())
                continue
            size, files, _, _ = socket.recv_fds(connection, 4, 4)
            if not size:
                sys.exit(0)
            asked = socket.socket(fileno=files[0])
            data = connection.recv(int.from_bytes(size), socket.MSG_WAITALL)
            pid = os.fork()
            if not pid:
                selector.close()
                for descriptor, (_, other) in running.items():
                    os.close(descriptor)
                    other.close()
                connection.close()
                asked.close()
                return _become(json.loads(data), files[1:])
            asked.sendall(f"{pid}\n".encode())
            for file in files[1:]:
                os.close(file)
            descriptor = os.pidfd_open(pid)
            running[descriptor] = (pid, asked)
            selector.register(descriptor, selectors.EVENT_READ)


def _become(request: Mapping, files: Sequence[int]) -> list[str]:
    """Gives this process the folder, the environment and the files of the request."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    return request["arguments"]


def run(arguments: list[str]) -> None:
    """Does what `python ARGUMENTS` does."""
    kind, what, *rest = arguments
    sys.path[0] = str(Path.cwd()) if kind == "-m" else ""
    if kind == "-m":
        sys.argv[:] = [what, *rest]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = ["-c", *rest]
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    prepare()
    number_of_threads = len(list(Path("/proc/self/task").iterdir()))
    if number_of_threads > 1:
        raise RuntimeError(f"{number_of_threads} threads: a fork would have but one of them")
    gc.collect()
    gc.freeze()
    gc.enable()
    run(serve(socket.socket(fileno=int(sys.argv[1]))))
