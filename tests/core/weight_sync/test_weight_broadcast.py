"""Weights by broadcast from one process to others, over gloo."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from ajet.core.net.rendezvous import listen
from ajet.core.weight_sync.broadcast import BroadcastReceiver, BroadcastSender
from ajet.core.weight_sync.load import load_tensors
from ajet.core.weight_sync.manifest import WeightsError


def _tensors():
    return {
        "a": torch.arange(6.0).reshape(2, 3),
        "b": torch.tensor(3.0).bfloat16(),
        "c": torch.ones(0),
    }


def _send(told, version, number, times, names):
    sender = BroadcastSender("127.0.0.1", timeout_s=30)
    sender.snapshot(version, {n: t for n, t in _tensors().items() if n in names}.items())
    for _ in range(times):
        told.put(sender.receivers(version, number))
        sender.send()


@pytest.fixture
def sender():
    """Starts the sending process, which is gone afterwards; gives each time's seats."""
    started = []
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])  # imported once, not by every sender

    def start(version, *, number=1, times=1, names="abc"):
        told = context.Queue()
        process = context.Process(target=_send, args=(told, version, number, times, names))
        process.start()
        started.append(process)
        return lambda: told.get(timeout=30)

    yield start
    for process in started:
        process.join(10)
        assert process.exitcode == 0


def _zeros():
    return {name: torch.zeros_like(tensor) for name, tensor in _tensors().items()}


def test_all_receivers_get_the_same_at_once_and_another_gets_it_later(sender):
    next_seats = sender(7, number=2)
    targets = [_zeros(), _zeros()]
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(load_tensors, targets, next_seats()))
    for each in targets:
        assert all(torch.equal(each[name], tensor) for name, tensor in _tensors().items())
    assert [(r.version, r.num_bytes) for r in reports] == [(7, 26)] * 2
    again = sender(7, times=2)
    late = [load_tensors(_zeros(), again()[0]) for _ in range(2)]
    assert {report.checksum for report in [*reports, *late]} == {reports[0].checksum}


def test_a_missing_tensor_is_one_line_and_the_old_weights_stay(sender):
    next_seats = sender(1, names="ab")
    targets = {"a": torch.ones(2, 3), "b": torch.ones((), dtype=torch.bfloat16), "d": torch.ones(1)}
    with pytest.raises(WeightsError, match=r"^weights of version 1: missing d$"):
        load_tensors(targets, next_seats()[0])
    assert targets["a"].sum() == 6


def test_another_version_is_refused(sender):
    (receiver,) = sender(4)()
    with pytest.raises(WeightsError, match="received version 4, not 5"):
        load_tensors(_tensors(), replace(receiver, version=5))


def test_a_version_that_the_trainer_has_left_behind_is_one_line():
    sender = BroadcastSender("127.0.0.1")
    sender.snapshot(2, _tensors().items())
    with pytest.raises(WeightsError, match=r"^weights of version 1 are no longer available"):
        sender.receivers(1, 1)


def test_a_copy_is_not_changed_by_a_trainer_that_goes_on():
    weight, sender = torch.ones(3), BroadcastSender("127.0.0.1", timeout_s=30)
    sender.snapshot(1, [("w", weight)])
    weight.zero_()
    (receiver,) = sender.receivers(1, 1)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(sender.send)
        ((_, arrived),) = receiver.tensors()
    assert arrived.tolist() == [1.0, 1.0, 1.0] and sent.result().num_bytes == 12


def test_a_sender_that_never_comes_is_one_line():
    store = listen("127.0.0.1", 0, 2, 0.5)
    receiver = BroadcastReceiver("127.0.0.1", store.port, 1, 2, 1, timeout_s=0.5)
    with pytest.raises(WeightsError, match=r"^weights by gloo over 127\.0\.0\.1") as caught:
        list(receiver.tensors())
    assert "\n" not in str(caught.value)
