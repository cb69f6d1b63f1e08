"""Which interface ranks use, and who is named where nodes do not reach each other."""

import socket
from contextlib import closing

import pytest

from ajet.cluster.nodes import (
    PROBE_BYTES,
    Listener,
    failure_line,
    forwarded_variables,
    interface_of,
    unreachable,
    use_interface_of,
)

psutil = pytest.importorskip("psutil")
LOOPBACK = next(
    name
    for name, entries in psutil.net_if_addrs().items()
    if any(entry.address == "127.0.0.1" for entry in entries)
)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "127.0.1.1"])
def test_every_loopback_address_is_of_the_loopback_interface(address):
    assert interface_of(address) == LOOPBACK


def test_an_address_of_another_machine_has_no_interface_here():
    environ = {}
    use_interface_of("192.0.2.77", environ)
    assert interface_of("192.0.2.77") is None and environ == {}


def test_gloo_and_nccl_take_the_interface_of_the_node_and_what_is_set_stays():
    environ = {"NCCL_SOCKET_IFNAME": "ib0"}
    use_interface_of("127.0.0.1", environ)
    assert environ == {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": "ib0"}


def test_settings_of_gloo_and_nccl_reach_the_other_processes():
    settings = {"NCCL_DEBUG": "INFO", "GLOO_SOCKET_IFNAME": "eth1", "TORCH_NCCL_NAN_CHECK": "1"}
    assert forwarded_variables(settings | {"HOME": "/home/me"}) == settings


async def test_a_node_that_listens_is_reached_and_one_that_does_not_is_named():
    with closing(Listener("127.0.0.1")) as there, closing(Listener("127.0.0.1")) as gone:
        gone.close()
        found = await unreachable([there.address, gone.address])
    assert found == {1: "Connection refused"}


async def test_a_node_whose_packets_are_dropped_is_named_after_the_time():
    with socket.socket() as full, socket.socket() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)  # room for one connection, which nobody accepts
        waiting.connect(full.getsockname())
        found = await unreachable([full.getsockname()], timeout_s=0.2)
    assert found == {0: "no answer within 0.2 s"}


async def test_a_network_that_loses_packets_of_full_size_is_told_apart():
    """A system that has no room to receive stands for it: it acknowledges the first bytes alone."""
    with closing(Listener("127.0.0.1")) as there, socket.socket() as small:
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        small.bind(("127.0.0.1", 0))
        small.listen()
        addresses = [there.address, small.getsockname()]
        assert await unreachable(addresses) == {}
        found = await unreachable(addresses, timeout_s=0.3, num_bytes=PROBE_BYTES)
    assert found.keys() == {1} and found[1].startswith("connects, but packets of full size are lo")


def test_the_message_names_who_does_not_reach_whom_in_one_line():
    addresses = [("10.0.0.1", 1), ("10.0.0.2", 2), ("10.0.0.3", 3)]
    line = failure_line(addresses, [{2: "no answer within 5 s"}, {}, {0: "No route to host"}])
    assert line is not None and "\n" not in line
    assert "10.0.0.1 does not reach 10.0.0.3 (no answer within 5 s)" in line
    assert "10.0.0.3 does not reach 10.0.0.1 (No route to host)" in line
    assert "10.0.0.2" not in line


def test_of_many_failures_the_message_names_three():
    addresses = [("10.0.0.1", 1)] * 4
    line = failure_line(addresses, [{1: "x", 2: "x", 3: "x"}, {0: "x"}, {}, {}])
    assert line is not None and line.count("does not reach") == 3 and "; and 1 more." in line


def test_nodes_that_all_reach_each_other_have_no_message():
    assert failure_line([("10.0.0.1", 1)], [{}]) is None
