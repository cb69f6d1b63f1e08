"""Starts a Ray for one run, or joins one; stops what it started, and nothing else."""

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from loguru import logger

from ajet.cluster.connection import HEAD_PORT, SessionSettings, choose_connection
from ajet.cluster.machine import gpus_taken, require_free_gpus
from ajet.cluster.nodes import NODES_TIMEOUT_S, POLL_S, forwarded_variables
from ajet.cluster.probe import one_line
from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError, PackageMissing
from ajet.core.errors.codes import Code
from ajet.core.process.process_guard import guarded
from ajet.core.text.error_text import extra_advice
from ajet.core.user_code.breakpoint import TAGS_VARIABLE

LOOPBACK = "127.0.0.2"
"""With 127.0.0.1 Ray would listen on the machine's network address, where others reach it."""
CONNECT_TIMEOUT_S, PROBE_TIMEOUT_S, STOP_TIMEOUT_S = 5.0, 30.0, 8.0
HEAD_TIMEOUT_S = 300.0
"""How long a head that starts here may take."""
GONE_AFTER_FAILURES = 4
"""Failed connections in a row: a single one may fail on a busy network."""
MAX_REASON_CHARS = 300
START_TRIES = 3
TOO_SLOW = "Ray gave up on its node before it had started (is the machine busy?): trying again"
Print = Callable[[str], None]


@dataclass(frozen=True)
class RaySession:
    """The Ray that this process is connected to. `is_own`: it was started here for this run. All
    processes of the run get the variables of `environment`."""

    address: str
    is_own: bool
    environment: Mapping[str, str]


@contextmanager
def ray_session(
    settings: SessionSettings, config: AjetConfig, print_line: Print = lambda text: None
) -> Iterator[RaySession]:
    """Starts or joins Ray until the block ends. If the block fails, the logs of a Ray started here
    are kept."""
    require_ray()
    connection = choose_connection(settings, os.environ)
    env = worker_environment(settings, config.base_dirs, os.environ)
    if connection.action == "start":
        if settings.check_gpus:
            require_free_gpus(numbers=gpus_taken(config))
        with _local_ray(env, print_line, connection.reason) as session:
            yield session
    elif connection.action == "join":
        with _joined(connection.address, env, print_line) as session:
            yield session
    else:
        port = int(connection.address.rpartition(":")[2])
        with (
            _head(port, print_line) as address,
            _joined(address, env, print_line, HEAD_TIMEOUT_S) as session,
        ):
            yield session


def serve_as_node(settings: SessionSettings, print_line: Print = lambda text: None) -> bool:
    """If MASTER_ADDR is another node, serves its head until that ends and returns True; else
    returns False."""
    connection = choose_connection(settings, os.environ)
    if connection.action != "serve":
        return False
    require_ray()
    _await_head(connection.address, print_line)
    _use_own_token()
    print_line(f"this node serves the Ray of {connection.address} until that ends")
    for number in range(1, START_TRIES + 1):
        with _ray_start(f"--address={connection.address}") as node:
            while node.child.poll() is None and not _is_gone(connection.address):
                time.sleep(POLL_S)
            # Done if the head has gone, which may also end this node's `ray start` (with 0).
            if not node.child.poll() or _is_gone(connection.address):
                break
            if number == START_TRIES or not node.was_too_slow:
                reason = node.failure_reason()
                raise ConfigError(
                    f"this node cannot serve the Ray of {connection.address}: {reason}",
                    code=Code.RAY_UNREACHABLE,
                )
        print_line(TOO_SLOW)
    return True


def require_ray() -> None:
    if find_spec("ray") is None:
        raise PackageMissing(
            f"backbones verl and trinity need Ray, which is not installed; {extra_advice('ray')} "
            "(--backbone debug trains without it)"
        )


def worker_environment(
    settings: SessionSettings, base_dirs: Sequence[Path], environ: Mapping[str, str]
) -> dict[str, str]:
    """Returns the environment variables of the run's processes: the search path of the user's
    modules, settings of gloo and NCCL, and the debugger's tags."""
    package = str(Path(__file__).resolve().parents[2])
    search_path = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    folders = [*map(str, base_dirs), *search_path, package]
    env = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(folders)), **forwarded_variables(environ)}
    if settings.debug_tags:
        # `ray debug` in another terminal; RAY_DEBUG=1 is VS Code's, which needs a dashboard
        debugger = environ.get("RAY_DEBUG", "legacy")
        env |= {TAGS_VARIABLE: "|".join(settings.debug_tags), "RAY_DEBUG": debugger}
    return env


@contextmanager
def _local_ray(env: dict[str, str], print_line: Print, reason: str) -> Iterator[RaySession]:
    import ray

    folder = Path(tempfile.mkdtemp(prefix="ajet-ray-"))  # short: Ray puts sockets there
    print_line(f"starting a Ray on this machine ({reason}); its logs are in {folder} while it runs")
    is_clean = False
    try:
        start_ray(folder, **_init_options(env))
        address = ray.get_runtime_context().gcs_address
        _print_debugger_command(address, env, print_line)
        yield RaySession(address, True, env)
        is_clean = True
    except (KeyboardInterrupt, SystemExit):
        is_clean = True
        raise
    finally:
        ray.shutdown()
        if is_clean:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print_line(f"the logs of this Ray are kept in {folder}")


def _end_processes_of(folder: Path) -> None:
    """Kills the processes of a Ray that did not start: their command lines contain its folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            command = (process / "cmdline").read_bytes()
            if os.fsencode(folder) in command and int(process.name) != os.getpid():
                os.kill(int(process.name), signal.SIGKILL)


def start_ray(folder: Path, **options: Any) -> None:
    """Starts a Ray with `ray.init`, with its files in `folder`. Ray gives its node 30 s, which a
    busy machine may need for imports alone, so it is tried START_TRIES times."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    defaults = {"address": "local", "include_dashboard": False, "_node_ip_address": LOOPBACK}
    for number in range(1, START_TRIES + 1):
        try:
            ray.init(**defaults, _temp_dir=str(folder), **options)
            return
        except Exception as error:  # Ray raises a plain Exception
            ray.shutdown()
            _end_processes_of(folder)
            reason = " ".join(str(error).split())
            if number == START_TRIES or "timed out" not in reason:
                raise ConfigError(
                    f"Ray did not start on this machine: {reason} (tried {number}x: is the "
                    "machine overloaded, or its disk full?)",
                    code=Code.RAY_UNREACHABLE,
                ) from error
            logger.warning(f"Ray did not start, {reason}; trying again")


@contextmanager
def _joined(
    address: str, env: dict[str, str], print_line: Print, timeout_s: float = PROBE_TIMEOUT_S
) -> Iterator[RaySession]:
    _use_own_token()
    import ray

    _check_cluster(address, timeout_s)
    ray.init(address=address, **_init_options(env))
    try:
        gcs_address = ray.get_runtime_context().gcs_address
        print_line(f"joined the Ray of {gcs_address}")
        _print_debugger_command(gcs_address, env, print_line)
        yield RaySession(gcs_address, False, env)
    finally:
        ray.shutdown()


def _print_debugger_command(address: str, env: dict[str, str], print_line: Print) -> None:
    """Prints the debugger's command, ready to copy."""
    if TAGS_VARIABLE in env:  # `ray debug` sends a token only if RAY_AUTH_MODE says so
        mode = os.environ.get("RAY_AUTH_MODE") or ("token" if _has_token() else "disabled")
        prefix = "RAY_AUTH_MODE=token " if mode == "token" else ""
        print_line(f"breakpoints: `{prefix}ray debug --address {address}` in another terminal")


def _use_own_token() -> None:
    """Makes Ray send this machine's token, if there is one and RAY_AUTH_MODE is not set: a Ray that
    `ray.init` started requires a token, but Ray's client sends none by default."""
    if _has_token() and not os.environ.get("RAY_AUTH_MODE"):
        from ray import _raylet

        os.environ["RAY_AUTH_MODE"] = "token"
        # Ray reads the environment when it is imported, which may have been before.
        vars(_raylet)["Config"].initialize("")


def _require_token() -> None:
    """Raises ConfigError if a head would be open to everybody: `ray start --head` demands a token
    from clients only if it finds one, or if RAY_AUTH_MODE says so."""
    if not (_has_token() or os.environ.get("RAY_AUTH_MODE")):
        raise ConfigError(
            "--with-ray-cluster: this machine has no token, and a Ray head without one lets "
            "anybody who reaches its port run code; run `ray get-auth-token --generate` and copy "
            "~/.ray/auth_token to every node, or set RAY_AUTH_MODE=disabled in a network that you "
            "trust",
            code=Code.RAY_ADDRESS,
        )


def _has_token() -> bool:
    files = (os.environ.get("RAY_AUTH_TOKEN_PATH"), Path.home() / ".ray/auth_token")
    has_file = any(file and Path(file).is_file() for file in files)
    return bool(os.environ.get("RAY_AUTH_TOKEN")) or has_file


def _init_options(env: dict[str, str]) -> dict[str, Any]:
    return {
        "runtime_env": {"env_vars": env},
        "logging_level": logging.WARNING,
        "log_to_driver": True,
        "namespace": "ajet",
    }


def _check_cluster(address: str, timeout_s: float = PROBE_TIMEOUT_S) -> None:
    """Raises ConfigError unless a Ray of this version answers."""
    if address != "auto" and not _is_reachable(address):
        raise ConfigError(
            f"no Ray answers at {address}; is it running (`ray start --head` there), and is the "
            "port open?",
            code=Code.RAY_UNREACHABLE,
        )
    # In a separate process: if something else listens at the address, Ray's client takes long to
    # fail and may end its process.
    command = [sys.executable, "-m", "ajet.cluster.probe", address]
    try:
        probe = subprocess.run(
            guarded(command), capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"what listens at {address} does not answer like a Ray (within {timeout_s:.0f} s); "
            f"give the head's address, such as host:{HEAD_PORT}",
            code=Code.RAY_UNREACHABLE,
        ) from None
    if probe.returncode:
        last = (probe.stdout or probe.stderr).strip().splitlines() or ["no message"]
        raise ConfigError(
            f"the Ray of {address} cannot be joined: {last[-1]}", code=Code.RAY_UNREACHABLE
        )


def _is_reachable(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False


def _is_gone(address: str) -> bool:
    """Returns True after GONE_AFTER_FAILURES failed connections in a row."""
    for _ in range(GONE_AFTER_FAILURES):
        if _is_reachable(address):
            return False
        time.sleep(POLL_S)
    return True


def _await_head(address: str, print_line: Print) -> None:
    """Waits for the head, which may start later than the nodes that serve it."""
    deadline = time.monotonic() + NODES_TIMEOUT_S
    if not _is_reachable(address):
        print_line(f"waiting for the head at {address} (MASTER_ADDR)")
    while not _is_reachable(address):
        if time.monotonic() > deadline:
            raise ConfigError(
                f"no head answers at {address} (MASTER_ADDR) within {NODES_TIMEOUT_S:.0f} s; is "
                "that node running the same command, and is the port open?",
                code=Code.RAY_UNREACHABLE,
            )
        time.sleep(POLL_S)


@contextmanager
def _head(port: int, print_line: Print) -> Iterator[str]:
    """Yields the address of a head at `port` of this machine; starts one unless it runs."""
    address = f"127.0.0.1:{port}"
    _use_own_token()
    if _is_reachable(address):
        try:
            _check_cluster(address)
        except ConfigError as error:
            raise ConfigError(
                f"MASTER_PORT={port} is in use on this node: {error}", code=Code.PORT_IN_USE
            ) from error
        yield address
        return
    _require_token()
    print_line(f"starting the head of a Ray cluster at port {port} (MASTER_ADDR is this node)")
    for number in range(1, START_TRIES + 1):
        with _ray_start("--head", f"--port={port}", "--include-dashboard=false") as node:
            if _wait_until_up(node, address):
                yield address
                return
            if number == START_TRIES or not node.was_too_slow:
                raise ConfigError(
                    f"a Ray head at port {port} did not start: {node.failure_reason()}",
                    code=Code.RAY_UNREACHABLE,
                )
        print_line(TOO_SLOW)


def _wait_until_up(node: "_RayNode", address: str) -> bool:
    deadline = time.monotonic() + HEAD_TIMEOUT_S
    while not (node.is_up and _is_reachable(address)):
        if node.child.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(POLL_S / 5)
    return True


@dataclass(frozen=True)
class _RayNode:
    """A `ray start` of this process, and the file with its output."""

    child: "subprocess.Popen[bytes]"
    output: Path

    @property
    def is_up(self) -> bool:
        """Whether Ray says that the whole node runs; its port is open earlier."""
        return "Ray runtime started" in self.output.read_text()

    @property
    def was_too_slow(self) -> bool:
        """Whether Ray gave up on the node after 30 s, which a busy machine may need for imports."""
        return "timed out during startup" in self.output.read_text()

    def failure_reason(self) -> str:
        message = one_line(self.output.read_text())[-MAX_REASON_CHARS:] or "no message"
        return f"`ray start` ended with {self.child.poll()}: {message}"


@contextmanager
def _ray_start(*options: str) -> Iterator[_RayNode]:
    """Runs `ray start … --block` in a new process group, under a process guard: it ends with the
    block, or with this process, however that ends."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, "--block"]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        with output.open("w") as file:
            child = subprocess.Popen(
                guarded([*command, "--disable-usage-stats"], grace_s=STOP_TIMEOUT_S),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        try:
            yield _RayNode(child, output)
        finally:
            child.terminate()
            child.wait()
