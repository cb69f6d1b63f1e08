"""Waits for the nodes of a cluster, helps processes on several nodes find each other, and finds
nodes that cannot connect.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence

from ajet.cluster.placement import Node
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code

INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
FORWARDED_PREFIXES = ("GLOO_", "NCCL_", "TORCH_NCCL_")
"""Variables of the driver with these prefixes reach every process of the run."""
CONNECT_TIMEOUT_S = 5.0
PROBE_BYTES, QUEUE_POLL_S = 1 << 14, 0.01
"""A probe is larger than any network's packets: where an interface has a smaller MTU, nodes connect
and then hang when weights travel. It is smaller than what a system buffers before anybody reads."""
BACKLOG = 1024
Addresses = Sequence[tuple[str, int]]
NODES_TIMEOUT_S = 600.0
POLL_S = 1.0
UNREACHABLE_TIMEOUT_S = 30.0
"""How long a node may stay in the cluster without answering; then Ray gives up on it too."""


def forwarded_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of gloo and NCCL in the environment."""
    return {name: value for name, value in environ.items() if name.startswith(FORWARDED_PREFIXES)}


def use_interface_of(address: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Sets the interface of gloo and NCCL to the one that has this address, unless it is set."""
    name = interface_of(address)
    if name is not None:
        for variable in INTERFACE_VARIABLES:
            environ.setdefault(variable, name)


def interface_of(address: str) -> str | None:
    """Returns the name of this machine's interface with the address, or None."""
    import psutil

    target = ipaddress.ip_address(address)
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            candidate = ipaddress.ip_address(entry.address.partition("%")[0])
            # All of 127.0.0.0/8 is the loopback interface's, which lists its first address only.
            if candidate == target or (candidate.is_loopback and target.is_loopback):
                return name
    return None


class Listener:
    """Listens at a free port of an address; the system accepts connections without our help."""

    def __init__(self, address: str) -> None:
        family, socket_type, *_, bound = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        self._socket = socket.socket(family, socket_type)
        self._socket.bind(bound)
        self._socket.listen(BACKLOG)
        self.address: tuple[str, int] = address, self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


async def unreachable(
    addresses: Addresses, timeout_s: float = CONNECT_TIMEOUT_S, *, num_bytes: int = 0
) -> dict[int, str]:
    """Connects to all addresses at once and sends each `num_bytes`; returns index and reason of
    those that do not answer in time."""

    async def reason(address: tuple[str, int]) -> str | None:
        try:
            async with asyncio.timeout(timeout_s):
                _, writer = await asyncio.open_connection(*address)
        except TimeoutError:
            return f"no answer within {timeout_s:g} s"
        except OSError as error:
            return os.strerror(error.errno) if error.errno else str(error)
        try:
            async with asyncio.timeout(timeout_s):
                await send_until_acknowledged(writer, num_bytes)
        except TimeoutError:
            return (
                "connects, but packets of full size are lost: compare the MTU of both interfaces "
                "(`ip link`)"
            )
        finally:
            writer.transport.abort()
        return None

    reasons = await asyncio.gather(*map(reason, addresses))
    return {
        index: reason_text for index, reason_text in enumerate(reasons) if reason_text is not None
    }


async def send_until_acknowledged(writer: asyncio.StreamWriter, num_bytes: int) -> None:
    """Sends zeros and returns when the other machine's kernel has acknowledged them, whether or not
    a process reads them. Does nothing except on Linux."""
    if sys.platform != "linux":
        return
    import fcntl
    import termios

    sending = writer.get_extra_info("socket")
    writer.write(bytes(num_bytes))
    # TIOCOUTQ: the bytes in the send queue that are not acknowledged.
    while int.from_bytes(fcntl.ioctl(sending, termios.TIOCOUTQ, bytes(4)), sys.byteorder):
        await asyncio.sleep(QUEUE_POLL_S)


def failure_line(addresses: Addresses, failures: Sequence[Mapping[int, str]]) -> str | None:
    """Returns one line with the nodes that do not reach each other, or None. `failures[index]` is
    the result of `unreachable` on the node of `addresses[index]`."""
    missing = [
        f"{addresses[index][0]} does not reach {addresses[peer][0]} ({reason})"
        for index, reasons in enumerate(failures)
        for peer, reason in reasons.items()
    ]
    if not missing:
        return None
    text = "; ".join(missing[:3]) + (f"; and {len(missing) - 3} more" if len(missing) > 3 else "")
    return (
        f"nodes cannot connect to each other: {text}. Open all TCP ports between them, and pass "
        "each `ray start` --node-ip-address with an address that the others reach"
    )


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
