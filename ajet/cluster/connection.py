"""Decides from flags and environment how a run gets its Ray (session.py then connects)."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code

HEAD_PORT = 6379


@dataclass(frozen=True)
class SessionSettings:
    """The command line's settings for starting or joining Ray."""

    mode: Literal["auto", "start", "cluster"] = "auto"
    debug_tags: tuple[str, ...] = ()
    check_gpus: bool = True


@dataclass(frozen=True)
class RayConnection:
    """How to get a Ray: start one here, join the one at `address`, lead (start the head there and
    join it), or serve the head there. `reason` says why one is started here."""

    action: Literal["start", "join", "lead", "serve"]
    address: str = ""
    reason: str = ""


def choose_connection(settings: SessionSettings, environ: Mapping[str, str]) -> RayConnection:
    """Decides from settings and environment whether to start, join, lead or serve a Ray.

    --with-ray                                    start a Ray here, for this machine alone
    --with-ray-cluster, RAY_ADDRESS=host:6379     join that cluster
    --with-ray-cluster, MASTER_ADDR, MASTER_PORT  the same command on every node: the node of
                                                  MASTER_ADDR leads, the others serve the head
                                                  until it ends
    neither                                       join RAY_ADDRESS if it is set, else start one
    """
    address = environ.get("RAY_ADDRESS", "").strip()
    if settings.mode == "start" or (settings.mode == "auto" and address in ("", "local")):
        reason = "--with-ray" if settings.mode == "start" else "no RAY_ADDRESS is set"
        return RayConnection("start", reason=reason)
    if address:
        return RayConnection("join", _joinable(address))
    if master := environ.get("MASTER_ADDR", "").strip(" []"):
        port = environ.get("MASTER_PORT", "") or str(HEAD_PORT)
        if not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigError(
                f"MASTER_PORT={port}: not a port, such as {HEAD_PORT}", code=Code.RAY_ADDRESS
            )
        address = _with_port(master, int(port))
        return RayConnection("lead" if _leads(master, environ) else "serve", address)
    raise ConfigError(
        "--with-ray-cluster: neither RAY_ADDRESS nor MASTER_ADDR is set; set one (host:6379), or "
        "use --with-ray to start a Ray on this machine",
        code=Code.RAY_ADDRESS,
    )


def _joinable(address: str) -> str:
    if "://" in address:
        raise ConfigError(
            f"RAY_ADDRESS={address}: this is a client's or a dashboard's address; run ajet on a "
            "node of the cluster with the head's address, such as host:6379, or auto",
            code=Code.RAY_ADDRESS,
        )
    if address == "local":
        raise ConfigError(
            "RAY_ADDRESS=local names no cluster; with --with-ray-cluster set it to the head's "
            "address (host:6379), or unset it and use --with-ray to start a Ray on this machine",
            code=Code.RAY_ADDRESS,
        )
    is_bare_ipv6 = address.count(":") > 1 and "]" not in address
    if address != "auto" and (is_bare_ipv6 or not address.rpartition(":")[2].isdigit()):
        return _with_port(address, HEAD_PORT)
    return address


def _with_port(host: str, port: int) -> str:
    """Returns host:port; an IPv6 address gets brackets."""
    is_bare_ipv6 = ":" in host and not host.startswith("[")
    return f"[{host}]:{port}" if is_bare_ipv6 else f"{host}:{port}"


def _leads(master: str, environ: Mapping[str, str]) -> bool:
    """Returns whether this node is the master: its rank is 0 or, if the launcher sets no rank, the
    master's address belongs to this machine."""
    for name in ("NODE_RANK", "RANK", "SLURM_NODEID"):
        if environ.get(name, "").isdigit():
            return int(environ[name]) == 0
    try:  # a socket can only be bound to an address of this machine
        family, socket_type, *_, address = socket.getaddrinfo(master, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket_type) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True
