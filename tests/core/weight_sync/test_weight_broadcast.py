"""Weights by broadcast between two processes over gloo."""

import multiprocessing
import socket

import pytest
import torch

from ajet.core.weight_sync.broadcast import BroadcastGroup
from ajet.core.weight_sync.load import load_tensors
from ajet.core.weight_sync.manifest import WeightsError


def _tensors():
    return {
        "a": torch.arange(6.0).reshape(2, 3),
        "b": torch.tensor(3.0).bfloat16(),
        "c": torch.ones(0),
    }


def _free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _send(port, versions, names):
    group = BroadcastGroup("127.0.0.1", port, rank=0, size=2, timeout_s=30)
    for version in versions:
        sent = {name: tensor for name, tensor in _tensors().items() if name in names}
        group.send(version, sent.items())
    group.close()


@pytest.fixture
def sender():
    """Starts the sending process; it is gone afterwards."""
    started = []

    def start(versions, names="abc"):
        port = _free_port()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch"])  # imported once, not by every sender
        process = context.Process(target=_send, args=(port, versions, names))
        process.start()
        started.append(process)
        return BroadcastGroup("127.0.0.1", port, rank=1, size=2, timeout_s=30)

    yield start
    for process in started:
        process.join(10)
        assert process.exitcode == 0


def test_two_versions_arrive_one_after_the_other(sender):
    group = sender([1, 2])
    targets = {name: torch.zeros_like(tensor) for name, tensor in _tensors().items()}
    first = load_tensors(targets, group.source(1))
    second = load_tensors(targets, group.source(2), stage=False)
    assert all(torch.equal(targets[name], tensor) for name, tensor in _tensors().items())
    assert (first.num_bytes, first.version, second.version) == (26, 1, 2)
    assert first.checksum == second.checksum


def test_a_missing_tensor_is_one_line_and_the_old_weights_stay(sender):
    group = sender([1, 2], names="ab")
    targets = {"a": torch.ones(2, 3), "b": torch.ones((), dtype=torch.bfloat16), "d": torch.ones(1)}
    with pytest.raises(WeightsError, match=r"^weights of version 1: missing d$"):
        load_tensors(targets, group.source(1))
    assert targets["a"].sum() == 6
    with pytest.raises(WeightsError, match=r"a mixture\): missing d$"):
        load_tensors(targets, group.source(2), stage=False)


def test_another_version_is_refused(sender):
    group = sender([4])
    with pytest.raises(WeightsError, match="version 4 came, not 5"):
        load_tensors(_tensors(), group.source(5))


def test_a_sender_that_never_comes_is_one_line():
    with pytest.raises(WeightsError, match=r"^weights by gloo over 127\.0\.0\.1") as caught:
        BroadcastGroup("127.0.0.1", _free_port(), rank=1, size=2, timeout_s=0.5)
    assert "\n" not in str(caught.value)
