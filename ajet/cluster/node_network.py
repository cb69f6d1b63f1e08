"""Helps processes on several nodes find each other, and finds nodes that cannot connect.

    use_interface_of(address)             gloo and NCCL use the interface with the node's address
    with closing(Listener(address)):      a node's port, which the others try
        unreachable(addresses)            {index: reason} of those that do not answer

By default gloo uses the address that the machine's name resolves to, which is 127.0.1.1 on a stock
Debian or Ubuntu, and NCCL chooses an interface. Here it is the address by which Ray knows the node.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import sys
from collections.abc import Mapping, MutableMapping, Sequence

INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
FORWARDED_PREFIXES = ("GLOO_", "NCCL_", "TORCH_NCCL_")
"""Variables of the driver with these prefixes reach every process of the run."""
CONNECT_TIMEOUT_S = 5.0
PROBE_BYTES, POLL_S = 1 << 14, 0.01
"""A probe is larger than any network's packets: where an interface has a smaller MTU, nodes connect
and then hang when weights travel. It is smaller than what a system buffers before anybody reads."""
BACKLOG = 1024
Addresses = Sequence[tuple[str, int]]


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
        await asyncio.sleep(POLL_S)


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
