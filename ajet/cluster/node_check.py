"""Checks before anything is loaded that the nodes of a placement can take part in the run: they
connect to each other, and have the driver's versions and files.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from loguru import logger
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from ajet.cluster.actors import ImportEnv
from ajet.cluster.nodes import PROBE_BYTES, Listener, failure_line, unreachable
from ajet.cluster.placement import Node, Placement, Process
from ajet.cluster.weight_store import sync_method
from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.run.identity import code_hashes, named_file_hashes
from ajet.servers.serving import engine_name

ANSWER_TIMEOUT_S = 120.0
"""How long a process on a node may take to start and answer."""
READ_BY_DRIVER = ("ajet.task_reader.", "ajet.data.")
"""Keys of files that only the driver reads: tasks travel with their episodes."""
MAX_NAMED = 3
ProcessOptions = Callable[..., dict[str, Any]]


@dataclass(frozen=True, slots=True)
class NodeInputs:
    """The hashes of a node's inputs, by file or key, and whether it sees the run folder."""

    hashes: Mapping[str, str]
    sees_run_folder: bool


class NodeProbe:
    """The actor's class: one process on each node."""

    def __init__(self, import_env: ImportEnv) -> None:
        self._import_env = import_env

    def listen(self) -> tuple[str, int]:
        """Listens at a free port of this node; returns its address and the port."""
        self._listener = Listener(ray.util.get_node_ip_address())
        return self._listener.address

    def unreachable(self, addresses: Sequence[tuple[str, int]]) -> dict[int, str]:
        """Returns which of these addresses this node cannot connect to, and why."""
        return asyncio.run(unreachable(addresses, num_bytes=PROBE_BYTES))

    def inputs(self, config: AjetConfig, mark: Path) -> NodeInputs:
        """Returns this node's versions of the run's inputs. `mark` is a file in the run folder."""
        self._import_env.enter()
        return NodeInputs(shared_inputs(config), mark.is_file())


def check_nodes(
    placement: Placement, config: AjetConfig, run_folder: Path, options: ProcessOptions
) -> Placement:
    """Returns the placement with `sees_run_folder` set; raises ConfigError if a node cannot take
    part. `options` returns the Ray options of a process."""
    if not any(node.is_remote for node in placement.nodes):
        return placement
    _check_versions(placement, options)
    with _probes(placement, options) as probes:
        addresses = _answers(placement.nodes, [probe.listen.remote() for probe in probes])
        calls = [probe.unreachable.remote(addresses) for probe in probes]
        if (line := failure_line(addresses, _answers(placement.nodes, calls))) is not None:
            raise ConfigError(line, code=Code.NODE_UNREACHABLE)
        placement = _check_inputs(placement, probes, config, run_folder)
    blind = [node.name for node in placement.nodes if not node.sees_run_folder]
    if blind:
        require_run_folder(config, placement)
        logger.info(
            f"the run folder is not on {', '.join(blind)}: trainer rank 0 alone writes and reads "
            "checkpoints"
        )
    return placement


def shared_inputs(config: AjetConfig) -> dict[str, str]:
    """Returns the hashes of the files that every node of a run needs, by file or key."""
    file_hashes = named_file_hashes(config)
    return code_hashes(config) | {
        key: value for key, value in file_hashes.items() if not key.startswith(READ_BY_DRIVER)
    }


def require_run_folder(config: AjetConfig, placement: Placement) -> None:
    """Raises ConfigError if a process needs the run folder on a node that does not see it."""
    for processes, purpose in _needs(config, placement):
        for node in placement.nodes_of(processes):
            if not node.sees_run_folder:
                raise ConfigError(
                    f"node {node.name} does not see the run folder {config.run_folder.absolute()}, "
                    f"where {purpose}; share the folder between the nodes, at the same path",
                    code=Code.RUN_FOLDER_NOT_SHARED,
                )


def _needs(config: AjetConfig, placement: Placement) -> Iterator[tuple[Sequence[Process], str]]:
    """Yields processes that need the run folder on their nodes, and the reason."""
    yield placement.trainer[:1], "trainer rank 0 writes checkpoints"
    explores = config.ajet.backbone == "trinity" and config.trinity.mode == "explore"
    if explores or sync_method(config, placement)[0] == "checkpoint":
        yield placement.engines, "the trainer writes weights for the engines"
    if placement.engines and engine_name(config, on_gpu=placement.on_gpus) != "in_process":
        yield placement.engines, "inference servers read the model that they start from"
    grader = config.ajet.task_judge.rubrics_auto_grader
    if config.ajet.task_judge.judge_type == "rubrics_auto_grader" and not grader.rubrics:
        yield placement.workers, "judges keep the rubrics that they make"
    if config.ajet.environment.render_save_dir is not None:
        yield placement.workers, "pictures of episodes are written (environment.render_save_dir)"


@contextmanager
def _probes(placement: Placement, options: ProcessOptions) -> Iterator[list[Any]]:
    """Runs a probe on each node until the block ends."""
    kill: Any = ray.kill
    remote, import_env = ray.remote(NodeProbe), ImportEnv.current()
    probes = [
        remote.options(**_options_on(placement, node, options)).remote(import_env)
        for node in placement.nodes
    ]
    try:
        yield probes
    finally:
        for probe in probes:
            kill(probe)


def _options_on(placement: Placement, node: Node, options: ProcessOptions) -> dict[str, Any]:
    """Returns the Ray options of a process on this node that reserves no core."""
    return options(Process("worker", 0, placement.nodes.index(node)), num_cpus=0)


def _check_versions(placement: Placement, options: ProcessOptions) -> None:
    # The function is sent as code, so that a node without ajet, or with another one, answers too.
    remote, here = ray.remote(version_reader()), version_reader()()
    calls = [remote.options(**_options_on(placement, n, options)).remote() for n in placement.nodes]
    for node, there in zip(placement.nodes, _answers(placement.nodes, calls), strict=True):
        if there != here:
            raise ConfigError(
                f"node {node.name} has another version of Python or a package than this machine: "
                f"{describe_versions(here, there)}; install the same on every node, for the Python "
                "of its `ray start`",
                code=Code.PROJECT_NOT_ON_NODE,
            )


def version_reader() -> Callable[[], dict[str, str]]:
    """Returns a function that returns its machine's versions. Ray sends a local function as code
    and not by the name of its module."""

    def versions() -> dict[str, str]:
        from hashlib import sha256
        from importlib.metadata import PackageNotFoundError, version
        from importlib.util import find_spec
        from pathlib import Path
        from platform import python_version

        versions = {"Python": python_version()}
        for package in ("ajet", "ray", "torch", "transformers"):
            try:
                versions[package] = version(package)
            except PackageNotFoundError:
                continue
        spec = find_spec("ajet")
        if spec is not None and spec.origin is not None:
            files = sorted(Path(spec.origin).parent.rglob("*.py"))
            digest = sha256(b"".join(file.read_bytes() for file in files))
            versions["ajet's files"] = digest.hexdigest()[:8]
        return versions

    return versions


def describe_versions(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Describes which versions of a node differ from the driver's."""
    names = [name for name in {**here, **there} if there.get(name) != here.get(name)]
    return ", ".join(
        f"{name} {there.get(name, 'is missing')} (here {here.get(name, 'missing')})"
        for name in names
    )


def _check_inputs(
    placement: Placement, probes: Sequence[Any], config: AjetConfig, run_folder: Path
) -> Placement:
    """Compares the inputs of all nodes with the driver's; returns the placement with
    `sees_run_folder` set."""
    # A new file shows that a node's folder is this one and not another at the same path.
    mark = run_folder.absolute() / f".seen-{secrets.token_hex(8)}"
    mark.touch()
    try:
        calls = [probe.inputs.remote(config, mark) for probe in probes]
        answers = _answers(placement.nodes, calls)
    finally:
        mark.unlink()
    here = shared_inputs(config)
    for node, there in zip(placement.nodes, answers, strict=True):
        if (difference := describe_difference(here, there.hashes)) is not None:
            raise ConfigError(
                f"node {node.name} has other files than this machine in {Path.cwd()}: "
                f"{difference}; every node needs the same project in the same folder: copy it, or "
                "share the folder",
                code=Code.PROJECT_NOT_ON_NODE,
            )
    seen = (answer.sees_run_folder for answer in answers)
    nodes = (
        replace(node, sees_run_folder=sees)
        for node, sees in zip(placement.nodes, seen, strict=True)
    )
    return replace(placement, nodes=tuple(nodes))


def describe_difference(here: Mapping[str, str], there: Mapping[str, str]) -> str | None:
    """Describes how the inputs of a node differ from the driver's; None if they are equal."""
    missing = [f"no {name}" for name in here if name not in there]
    different = [f"another {name}" for name in here if name in there and there[name] != here[name]]
    more = [f"{name}, which is not here" for name in there if name not in here]
    differences = [*missing, *different, *more]
    rest = len(differences) - MAX_NAMED
    text = ", ".join(differences[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
    return text or None


def _answers(nodes: Sequence[Node], calls: Sequence[Any]) -> list[Any]:
    """Returns the nodes' answers; raises ConfigError for one that does not answer."""
    answers: list[Any] = []
    for node, call in zip(nodes, calls, strict=True):
        try:
            answers.append(ray.get(call, timeout=ANSWER_TIMEOUT_S))
        except GetTimeoutError:
            raise ConfigError(
                f"node {node.name}: its Ray answers, but no process there did within "
                f"{ANSWER_TIMEOUT_S:.0f} s; open all TCP ports between the nodes",
                code=Code.NODE_UNREACHABLE,
            ) from None
        except RayTaskError as error:
            raise error.cause from None
        except RayError as error:
            raise ConfigError(
                f"node {node.name}: a process there ended: {' '.join(str(error).split())[:300]}",
                code=Code.NODE_UNREACHABLE,
            ) from error
    return answers
