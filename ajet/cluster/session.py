"""A Ray for one run: started here, or joined; what was started is stopped, and nothing else.

    with ray_session(settings, config) as session:
        session.nodes            what placement.py takes

    --with-ray                                   start one here, for this machine alone
    --with-ray-cluster, RAY_ADDRESS=host:6379    join it
    --with-ray-cluster, MASTER_ADDR, MASTER_PORT the same command on every node: that of
                                                 MASTER_ADDR leads, the others serve it until it
                                                 goes (`serve_as_node`)
    neither                                      join RAY_ADDRESS if it is set, else start one

Ray is had over loopback and without a dashboard when it is started for one machine. Not covered:
clusters that are made (docs/cluster.md), placement (placement.py).
"""

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from loguru import logger

from ajet.cluster.capacity import gpus_taken
from ajet.cluster.gpus import require_free_gpus
from ajet.cluster.placement import Node
from ajet.cluster.probe import reason
from ajet.core.breakpoint import TAGS_VARIABLE
from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError
from ajet.servers import process_guard

HEAD_PORT = 6379
LOOPBACK = "127.0.0.2"
"""Of this machine alone; Ray takes 127.0.0.1 for a wish to be reached from others."""
ANSWER_WITHIN_S, PROBE_WITHIN_S, NODES_WITHIN_S, STOP_WITHIN_S = 5.0, 30.0, 600.0, 8.0
HEAD_WITHIN_S = 300.0
"""For a head that is being started."""
LOOK_AGAIN_S = 1.0
GONE_AFTER = 4
"""So often in a row nothing answers: one connect may fail on a busy network."""
LAST_WORDS = 300
START_TRIES = 3
TOO_SLOW = "Ray gave its node up before it was there (is the machine busy?): trying again"
Say = Callable[[str], None]


@dataclass(frozen=True)
class SessionSettings:
    """How Ray is had, as the command line says."""

    how: Literal["auto", "start", "cluster"] = "auto"
    debug_tags: tuple[str, ...] = ()
    check_gpus: bool = True


@dataclass(frozen=True)
class Access:
    """What `how` and the environment come to."""

    way: Literal["start", "join", "lead", "serve"]
    address: str = ""
    because: str = ""


@dataclass(frozen=True)
class RaySession:
    """A Ray that this process is connected to; `environment` is that of the run's processes."""

    address: str
    nodes: tuple[Node, ...]
    is_ours: bool
    environment: Mapping[str, str]


@contextmanager
def ray_session(
    settings: SessionSettings, config: AjetConfig, say: Say = lambda text: None
) -> Iterator[RaySession]:
    """Ray, until the block ends. An error in the block leaves the logs of a Ray that was ours."""
    require_ray()
    access = ray_access(settings, os.environ)
    env = worker_environment(settings, config, os.environ)
    if access.way == "start":
        if settings.check_gpus:
            require_free_gpus(numbers=gpus_taken(config))
        with _local_ray(env, say, access.because) as session:
            yield session
    elif access.way == "join":
        with _joined(access.address, config.ajet.trainer_common.nnodes, env, say) as session:
            yield session
    else:
        port = int(access.address.rpartition(":")[2])
        nnodes = config.ajet.trainer_common.nnodes
        with (
            _head(port, say) as address,
            _joined(address, nnodes, env, say, HEAD_WITHIN_S) as session,
        ):
            yield session


def serve_as_node(settings: SessionSettings, say: Say = lambda text: None) -> bool:
    """On a node that MASTER_ADDR does not name: serve that head until it goes, then True."""
    access = ray_access(settings, os.environ)
    if access.way != "serve":
        return False
    require_ray()
    _await_head(access.address, say)
    _offer_token()
    say(f"this node serves the Ray of {access.address}; it ends when that does")
    for number in range(1, START_TRIES + 1):
        with _ray_start(f"--address={access.address}") as node:
            while node.child.poll() is None and not _is_gone(access.address):
                time.sleep(LOOK_AGAIN_S)
            if not node.child.poll() or _is_gone(access.address):
                break
            if number == START_TRIES or not node.was_too_slow:
                raise ConfigError(
                    f"this node cannot serve the Ray of {access.address}: {node.last_words()}"
                )
        say(TOO_SLOW)
    return True


def require_ray() -> None:
    if find_spec("ray") is None:
        raise ConfigError(
            "backbones verl and trinity need Ray, which is not installed; pip install 'ajet[ray]' "
            "(--backbone debug trains without it)"
        )


def ray_access(settings: SessionSettings, environ: Mapping[str, str]) -> Access:
    """Whether Ray is started, joined, led or served."""
    address = environ.get("RAY_ADDRESS", "").strip()
    if settings.how == "start" or (settings.how == "auto" and address in ("", "local")):
        reason = "--with-ray" if settings.how == "start" else "no RAY_ADDRESS is set"
        return Access("start", because=reason)
    if address:
        return Access("join", _joinable(address))
    if master := environ.get("MASTER_ADDR", "").strip():
        at = f"{master}:{_port(environ.get('MASTER_PORT', ''))}"
        return Access("lead" if _leads(master, environ) else "serve", at)
    raise ConfigError(
        "--with-ray-cluster: neither RAY_ADDRESS nor MASTER_ADDR is set; set one (host:6379), or "
        "use --with-ray to start a Ray on this machine"
    )


def _joinable(address: str) -> str:
    if "://" in address:
        raise ConfigError(
            f"RAY_ADDRESS={address}: a client's or a dashboard's address; run ajet on a node of "
            "the cluster with the head's own, as host:6379 or auto"
        )
    if address == "local":
        raise ConfigError(
            "RAY_ADDRESS=local names no cluster; with --with-ray-cluster set it to the head's "
            "(host:6379), or unset it and use --with-ray to start a Ray on this machine"
        )
    if address != "auto" and not address.rpartition(":")[2].isdigit():
        return f"{address}:{HEAD_PORT}"
    return address


def _port(text: str) -> int:
    if not text:
        return HEAD_PORT
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise ConfigError(f"MASTER_PORT={text}: a port is expected, as {HEAD_PORT}")
    return int(text)


def _leads(master: str, environ: Mapping[str, str]) -> bool:
    """The launcher's rank says it; without one, whether the address is this machine's."""
    for name in ("NODE_RANK", "RANK", "SLURM_NODEID"):
        if environ.get(name, "").isdigit():
            return int(environ[name]) == 0
    try:
        host = socket.gethostbyname(master)
        with socket.socket() as own:
            own.bind((host, 0))
    except OSError:
        return False
    return True


def worker_environment(
    settings: SessionSettings, config: AjetConfig, environ: Mapping[str, str]
) -> dict[str, str]:
    """What every process of the run has in its environment: where the user's modules are, tags."""
    package = str(Path(__file__).resolve().parents[2])
    given = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    folders = [*map(str, config.base_dirs), *given, package]
    env = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(folders))}
    if settings.debug_tags:
        # `ray debug` in another terminal; RAY_DEBUG=1 is VS Code's, which needs a dashboard
        debugger = environ.get("RAY_DEBUG", "legacy")
        env |= {TAGS_VARIABLE: "|".join(settings.debug_tags), "RAY_DEBUG": debugger}
    return env


@contextmanager
def _local_ray(env: dict[str, str], say: Say, because: str) -> Iterator[RaySession]:
    import ray

    folder = Path(tempfile.mkdtemp(prefix="ajet-ray-"))  # short: it holds sockets
    say(f"starting a Ray on this machine ({because}); its logs are in {folder} while it runs")
    is_whole = False
    try:
        address = _start_local(folder, env)
        _say_debugger(address, env, say)
        yield RaySession(address, _nodes(), True, env)
        is_whole = True
    except (KeyboardInterrupt, SystemExit):
        is_whole = True
        raise
    finally:
        ray.shutdown()
        if is_whole:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            say(f"the logs of this Ray are kept in {folder}")


def _start_local(folder: Path, env: dict[str, str]) -> str:
    """The address of a Ray that is up."""
    import ray

    start_ray(folder, **_common(env))
    return ray.get_runtime_context().gcs_address


def start_ray(folder: Path, **options: Any) -> None:
    """`ray.init` for a Ray of this process's own, with its files in `folder`. Ray gives its node
    30 s, which a busy machine may need for the imports alone: it is tried START_TRIES times."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    where = {"address": "local", "include_dashboard": False, "_node_ip_address": LOOPBACK}
    for number in range(1, START_TRIES + 1):
        try:
            ray.init(**where, _temp_dir=str(folder), **options)
            return
        except Exception as error:  # Ray raises the plain class
            ray.shutdown()
            _end_processes_of(folder)
            reason = " ".join(str(error).split())
            if number == START_TRIES or "timed out" not in reason:
                raise ConfigError(
                    f"Ray did not start on this machine: {reason} (tried {number}x: is the "
                    "machine overloaded, or its disk full?)"
                ) from error
            logger.warning(f"Ray did not start, {reason}; trying again")


def _end_processes_of(folder: Path) -> None:
    """What a Ray that did not come up left running: its command lines name its folder."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            if os.fsencode(folder) in command and int(process.name) != os.getpid():
                os.kill(int(process.name), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue


@contextmanager
def _joined(
    address: str, nnodes: int, env: dict[str, str], say: Say, within_s: float | None = None
) -> Iterator[RaySession]:
    _offer_token()
    import ray

    _check_cluster(address, within_s)
    ray.init(address=address, **_common(env))
    try:
        found = ray.get_runtime_context().gcs_address
        say(f"joined the Ray of {found}")
        _say_debugger(found, env, say)
        yield RaySession(found, _await_nodes(nnodes, say), False, env)
    finally:
        ray.shutdown()


def _say_debugger(address: str, env: dict[str, str], say: Say) -> None:
    """The command as it can be copied: a Ray that asks for a token is offered none by itself."""
    if TAGS_VARIABLE in env:
        mode = os.environ.get("RAY_AUTH_MODE") or ("token" if _has_token() else "disabled")
        offered = "RAY_AUTH_MODE=token " if mode == "token" else ""
        say(f"breakpoints: `{offered}ray debug --address {address}` in another terminal")


def _offer_token() -> None:
    """This machine's token, if it has one and nothing else is said: Ray asks for one where it was
    started by `ray.init`, and offers none by itself."""
    if _has_token() and not os.environ.get("RAY_AUTH_MODE"):
        from ray import _raylet

        os.environ["RAY_AUTH_MODE"] = "token"
        # Ray may have been imported before, and have read the environment then.
        vars(_raylet)["Config"].initialize("")


def _require_token() -> None:
    """ConfigError where a head would be open: `ray start --head` asks for a token only if it finds
    one, or RAY_AUTH_MODE says so."""
    if not (_has_token() or os.environ.get("RAY_AUTH_MODE")):
        raise ConfigError(
            "--with-ray-cluster: no token is here, and a Ray head without one lets anybody who "
            "reaches its port run code; run `ray get-auth-token --generate` and copy "
            "~/.ray/auth_token to every node, or set RAY_AUTH_MODE=disabled in a network that you "
            "trust"
        )


def _has_token() -> bool:
    places = (os.environ.get("RAY_AUTH_TOKEN_PATH"), Path.home() / ".ray/auth_token")
    return bool(os.environ.get("RAY_AUTH_TOKEN")) or any(at and Path(at).is_file() for at in places)


def _common(env: dict[str, str]) -> dict[str, Any]:
    return {
        "runtime_env": {"env_vars": env},
        "logging_level": logging.WARNING,
        "log_to_driver": True,
        "namespace": "ajet",
    }


def _nodes() -> tuple[Node, ...]:
    """Those alive, in the order of their addresses, the head first."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    alive = [node for node in ray.nodes() if node["Alive"]]
    alive.sort(key=lambda node: ("node:__internal_head__" not in node["Resources"], node["NodeID"]))
    return tuple(
        Node(
            name=node["NodeManagerAddress"],
            cpus=node["Resources"].get("CPU", 0.0),
            gpus=int(node["Resources"].get("GPU", 0)),
            ray_id=node["NodeID"],
            is_remote=node["NodeID"] != here,
        )
        for node in alive
    )


def _await_nodes(nnodes: int, say: Say) -> tuple[Node, ...]:
    """The nodes once there are `nnodes`, or fewer after a while: placement says so."""
    deadline, told = time.monotonic() + NODES_WITHIN_S, 0
    while len(nodes := _nodes()) < nnodes and time.monotonic() < deadline:
        if len(nodes) != told:
            say(f"waiting for nodes: {len(nodes)} of {nnodes} (ajet.trainer_common.nnodes)")
            told = len(nodes)
        time.sleep(LOOK_AGAIN_S)
    return nodes


def _check_cluster(address: str, within_s: float | None = None) -> None:
    """ConfigError unless a Ray of this version answers, within PROBE_WITHIN_S by default.

    Asked by a process of its own: Ray's client neither ends soon nor always lives when something
    else listens there.
    """
    if address != "auto" and not _answers(address):
        raise ConfigError(
            f"no Ray answers at {address}; is it running (`ray start --head` there), and is the "
            "port open?"
        )
    within_s = PROBE_WITHIN_S if within_s is None else within_s
    command = [sys.executable, "-m", "ajet.cluster.probe", address]
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, timeout=within_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"what listens at {address} does not answer as a Ray does (within "
            f"{within_s:.0f} s); give the head's address, as host:{HEAD_PORT}"
        ) from None
    if asked.returncode:
        last = (asked.stdout or asked.stderr).strip().splitlines() or ["it ended without a word"]
        raise ConfigError(f"the Ray of {address} cannot be joined: {last[-1]}")


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=ANSWER_WITHIN_S):
            return True
    except OSError:
        return False


def _is_gone(address: str) -> bool:
    """Nothing answers there, GONE_AFTER times in a row."""
    for _ in range(GONE_AFTER):
        if _answers(address):
            return False
        time.sleep(LOOK_AGAIN_S)
    return True


def _await_head(address: str, say: Say) -> None:
    """The head may start later than the nodes that serve it."""
    deadline = time.monotonic() + NODES_WITHIN_S
    if not _answers(address):
        say(f"waiting for the head at {address} (MASTER_ADDR)")
    while not _answers(address):
        if time.monotonic() > deadline:
            raise ConfigError(
                f"no head answers at {address} (MASTER_ADDR) within {NODES_WITHIN_S:.0f} s; is "
                "that node running the same command, and is the port open?"
            )
        time.sleep(LOOK_AGAIN_S)


@contextmanager
def _head(port: int, say: Say) -> Iterator[str]:
    """The address of a head on this machine at `port`, started here unless one is running."""
    address = f"127.0.0.1:{port}"
    _offer_token()
    if _answers(address):
        try:
            _check_cluster(address)
        except ConfigError as error:
            raise ConfigError(f"MASTER_PORT={port} is in use on this node: {error}") from error
        yield address
        return
    _require_token()
    say(f"starting the head of a Ray cluster at port {port} (MASTER_ADDR is this node)")
    for number in range(1, START_TRIES + 1):
        with _ray_start("--head", f"--port={port}", "--include-dashboard=false") as node:
            if _comes_up(node, address):
                yield address
                return
            if number == START_TRIES or not node.was_too_slow:
                raise ConfigError(f"a Ray head at port {port} did not start: {node.last_words()}")
        say(TOO_SLOW)


def _comes_up(node: "_RayNode", address: str) -> bool:
    deadline = time.monotonic() + HEAD_WITHIN_S
    while not (node.is_up and _answers(address)):
        if node.child.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(LOOK_AGAIN_S / 5)
    return True


@dataclass(frozen=True)
class _RayNode:
    """A `ray start` of ours, and what it says."""

    child: "subprocess.Popen[bytes]"
    output: Path

    @property
    def is_up(self) -> bool:
        """The port is there before anything answers; this is said when all of the node does."""
        return "Ray runtime started" in self.output.read_text()

    @property
    def was_too_slow(self) -> bool:
        """Ray gives a node 30 s, which a busy machine may need for the imports alone."""
        return "timed out during startup" in self.output.read_text()

    def last_words(self) -> str:
        """One line."""
        said = reason(self.output.read_text())[-LAST_WORDS:] or "no word of it"
        return f"`ray start` ended with {self.child.poll()}: {said}"


@contextmanager
def _ray_start(*options: str) -> Iterator[_RayNode]:
    """Runs `ray start … --block` under a process guard, in a process group of its own. It ends with
    the block, or with this process, however that ends."""
    line = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, "--block"]
    with tempfile.TemporaryDirectory() as folder:
        output, pid_file = Path(folder) / "output", Path(folder) / "pid"
        guarded = [sys.executable, "-S", process_guard.__file__, str(STOP_WITHIN_S), str(pid_file)]
        with output.open("w") as file:
            child = subprocess.Popen(
                [*guarded, *line, "--disable-usage-stats"],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        try:
            yield _RayNode(child, output)
        finally:
            assert child.stdin is not None
            child.stdin.close()
            child.wait()
