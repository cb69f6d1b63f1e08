"""Waits for the nodes of a cluster, and finds those that do not answer."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from ajet.cluster.node_network import unreachable
from ajet.cluster.placement import Node
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code

NODES_TIMEOUT_S = 600.0
POLL_S = 1.0
UNREACHABLE_TIMEOUT_S = 30.0
"""How long a node may stay in the cluster without answering; then Ray gives up on it too."""


def alive_nodes() -> list[Node]:
    """Returns the nodes of the cluster: this process's first, which has the run folder, then the
    head, then the others by id."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    alive = [node for node in ray.nodes() if node["Alive"]]
    alive.sort(
        key=lambda node: (
            node["NodeID"] != here,
            "node:__internal_head__" not in node["Resources"],
            node["NodeID"],
        )
    )
    return [
        Node(
            name=node["NodeManagerAddress"],
            cpus=node["Resources"].get("CPU", 0.0),
            gpus=int(node["Resources"].get("GPU", 0)),
            ray_id=node["NodeID"],
            is_remote=node["NodeID"] != here,
            port=node["NodeManagerPort"],
        )
        for node in alive
    ]


def silent_nodes(nodes: Sequence[Node]) -> dict[Node, str]:
    """Returns the remote nodes among these whose Ray does not answer, and why."""
    remote = [node for node in nodes if node.is_remote]
    reasons = asyncio.run(unreachable([(node.name, node.port) for node in remote]))
    return {remote[index]: reason for index, reason in reasons.items()}


def await_nodes(
    nnodes: int,
    print_line: Callable[[str], None] = lambda text: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> list[Node]:
    """Waits until `nnodes` nodes answer and returns all that do; fewer after NODES_TIMEOUT_S or
    when `is_stopped`. Raises ConfigError if nodes are in the cluster but stay silent."""
    started, printed = time.monotonic(), ""
    while True:
        alive = alive_nodes()
        silent = silent_nodes(alive)
        nodes = [node for node in alive if node not in silent]
        waited_s = time.monotonic() - started
        if len(nodes) >= nnodes or is_stopped() or waited_s > NODES_TIMEOUT_S:
            return nodes
        if len(alive) >= nnodes and waited_s > UNREACHABLE_TIMEOUT_S:
            raise ConfigError(_silent_line(silent), code=Code.NODE_UNREACHABLE)
        line = f"waiting for nodes: {len(nodes)} of {nnodes} (ajet.trainer_common.nnodes)"
        if silent:
            line += f"; {_silent_line(silent)}"
        if line != printed:
            print_line(line)
            printed = line
        time.sleep(POLL_S)


def _silent_line(silent: Mapping[Node, str]) -> str:
    nodes = ", ".join(
        f"{node.name} at port {node.port} ({reason})" for node, reason in silent.items()
    )
    return f"no connection to the Ray of {nodes}: are all TCP ports between the nodes open?"
