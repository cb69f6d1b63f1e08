"""Two machines made of this one: each has a network of its own, and the two are joined by a cable.

    with two_networks(family=4) as machines:
        machines[0].address                     10.77.0.1, or fd00:a::1
        [*machines[0].command, "python", …]     starts a program there

The name of each machine resolves to 127.0.1.1, as on a stock Debian or Ubuntu. It needs the
system's `ip` and `unshare` and the right to make networks; the test is skipped where they lack.
"""

import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

NETNS = Path("/etc/netns")
"""`ip netns exec` lays the files below NETNS/NAME over those of /etc."""
RESOLVED_BY = "hosts: files\n"
"""There is no name server in these networks, and nobody is to wait for one."""
HOSTS = "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {name}\n"


@dataclass(frozen=True)
class Machine:
    network: str
    address: str
    command: tuple[str, ...]


@contextmanager
def two_networks(*, family: int) -> Iterator[list[Machine]]:
    names = [f"ajet-{secrets.token_hex(4)}-{rank}" for rank in range(2)]
    addresses = [f"10.77.0.{n}" if family == 4 else f"fd00:a::{n}" for n in (1, 2)]
    try:
        if not _make(names, addresses, prefix=24 if family == 4 else 64):
            pytest.skip("networks cannot be made here")
        yield [
            Machine(name, address, ("ip", "netns", "exec", name, *_named(name)))
            for address, name in zip(addresses, names, strict=True)
        ]
    finally:
        for name in names:
            _ip("netns", "del", name)
            shutil.rmtree(NETNS / name, ignore_errors=True)


def _make(names: list[str], addresses: list[str], prefix: int) -> bool:
    if not shutil.which("ip") or not shutil.which("unshare"):
        return False
    cable = ["link", "add", "net0", "netns", names[0], "type", "veth"]
    made = [_ip("netns", "add", name) for name in names]
    made.append(_ip(*cable, "peer", "name", "net0", "netns", names[1]))
    for name, own, other in zip(names, addresses, reversed(addresses), strict=True):
        without_probe = ["nodad"] if ":" in own else []  # IPv6 asks first whether it is taken
        made += [
            _ip("-n", name, "link", "set", "lo", "up"),
            _ip("-n", name, "link", "set", "net0", "up"),
            _ip("-n", name, "addr", "add", f"{own}/{prefix}", "dev", "net0", *without_probe),
            _ip("-n", name, "route", "add", "default", "via", other),
        ]
    if not all(made):
        return False
    for name in names:
        (NETNS / name).mkdir(parents=True)
        (NETNS / name / "hosts").write_text(HOSTS.format(name=name))
        (NETNS / name / "nsswitch.conf").write_text(RESOLVED_BY)
    return True


def _named(name: str) -> tuple[str, ...]:
    return ("unshare", "--uts", "sh", "-c", f'hostname {name}; exec "$@"', "sh")


def _ip(*arguments: str) -> bool:
    """Whether the system's `ip` did it."""
    version = ["-6"] if any(":" in each for each in arguments) else []
    return not subprocess.run(["ip", *version, *arguments], capture_output=True).returncode
