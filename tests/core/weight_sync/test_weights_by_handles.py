"""Weights between two processes on one device, by handles of its memory: on a CPU file descriptors.

The receiver runs in this process, the sender in another.
"""

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import torch
from torch.distributed import HashStore

from ajet.core.net.rendezvous import listen
from ajet.core.weight_sync import group
from ajet.core.weight_sync.broadcast import BroadcastSender, HandoverReceiver
from ajet.core.weight_sync.group import BroadcastGroup, GroupError
from ajet.core.weight_sync.load import load_tensors
from ajet.core.weight_sync.manifest import TensorInfo, WeightsError


def tensors():
    return {
        "a": torch.arange(600.0).reshape(20, 30),
        "b": torch.tensor(3.0).bfloat16(),
        "c": torch.ones(0),
        "d": torch.arange(7, dtype=torch.float64),
    }


def zeros():
    return {name: torch.zeros_like(tensor) for name, tensor in tensors().items()}


def send(told, version, number):
    """Hands over the weights themselves, of which no copy is made."""
    sender, given = BroadcastSender("127.0.0.1", backend="ipc", timeout_s=30), tensors()
    sender.hold(version, {name: tuple(t.shape) for name, t in given.items()}, given.items)
    told.put(sender.receivers(version, number))
    sender.send()


def send_parts(told, buffer_bytes, damage):
    """As a sender does, through a small buffer; the checksum of a tensor may be another's."""
    store = listen("127.0.0.1", 0, 2, 30)
    told.put(store.port)
    own = BroadcastGroup(
        "127.0.0.1", store.port, rank=0, size=2, backend="ipc", timeout_s=30, store=store,
        buffer_bytes=buffer_bytes,
    )  # fmt: skip
    own.send_header({"shapes": {}})
    for name, tensor in tensors().items():
        own.send_header(TensorInfo.of(name, tensor + (name == damage)).to_json())
        own.broadcast(tensor)
    own.send_header({"end": 1, "checksum": "-"})
    own.close()


def send_and_die(told):
    store = listen("127.0.0.1", 0, 2, 30)
    told.put(store.port)
    own = BroadcastGroup(
        "127.0.0.1", store.port, rank=0, size=2, backend="ipc", timeout_s=30, store=store
    )
    own.send_header({"shapes": {}})
    os._exit(3)


@pytest.fixture
def start():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])  # imported once, not by every sender
    started = []

    def start(act, *arguments):
        told = context.Queue()
        started.append(context.Process(target=act, args=(told, *arguments)))
        started[-1].start()
        return told.get(timeout=30)

    yield start
    for process in started:
        process.join(30)
        assert process.exitcode in (0, 3)


def test_two_receivers_get_what_the_sender_has(start):
    receivers, targets = start(send, 7, 2), [zeros(), zeros()]
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(load_tensors, targets, receivers))
    for each in targets:
        assert all(torch.equal(each[name], tensor) for name, tensor in tensors().items())
    assert {report.checksum for report in reports} == {reports[0].checksum}
    assert [(r.version, r.num_bytes) for r in reports] == [(7, 600 * 4 + 2 + 7 * 8)] * 2


def send_together(told, gathering, of_rank):
    """Sends as one of two ranks, which gather each tensor together; `of_rank` is added to one."""
    sender, given = BroadcastSender("127.0.0.1", backend="ipc", timeout_s=30), tensors()
    given["a"] += of_rank

    def gathered():
        for name, tensor in given.items():
            gathering.wait(30)
            yield name, tensor

    sender.hold(7, {name: tuple(t.shape) for name, t in given.items()}, gathered)
    told.put(sender.receivers(7, 1))
    with suppress(WeightsError):
        sender.send()


def handed_over(start, last=0):
    gathering = multiprocessing.get_context("forkserver").Barrier(2)
    receivers = (start(send_together, gathering, number * last) for number in range(2))
    return HandoverReceiver(tuple(receiver for (receiver,) in receivers))


def test_an_engine_of_two_gpus_is_handed_each_tensor_on_both(start):
    source = handed_over(start)
    found = {info.name: copies for info, copies in source.copies()}
    assert source.version == 7 and found.keys() == tensors().keys()
    for name, (first, second) in found.items():
        assert torch.equal(first, tensors()[name]) and torch.equal(second, tensors()[name])
        assert first.data_ptr() != second.data_ptr() or not first.numel()


def test_ranks_that_send_different_weights_are_noticed(start):
    with pytest.raises(
        WeightsError, match=r"^weights of version 7: the trainer ranks sent different a$"
    ):
        list(handed_over(start, last=1).copies())


def joined(port):
    return BroadcastGroup("127.0.0.1", port, rank=1, size=2, backend="ipc", timeout_s=30)


@pytest.mark.parametrize("buffer_bytes", [64, 999, 1 << 20])
def test_a_tensor_larger_than_the_buffer_comes_in_parts(start, buffer_bytes):
    receiver = joined(start(send_parts, buffer_bytes, None))
    receiver.receive_header()
    found = {header["name"]: tensor for header, tensor in receiver.tensors()}
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors().items())
    receiver.close()


def test_a_damaged_tensor_is_found_by_its_checksum(start):
    receiver = joined(start(send_parts, 1 << 20, "d"))
    receiver.receive_header()
    for header, tensor in receiver.tensors():
        is_whole = TensorInfo.from_json(header) == TensorInfo.of(header["name"], tensor)
        assert is_whole == (header["name"] != "d")
    receiver.close()


def test_a_model_of_other_shapes_keeps_its_weights(start):
    (receiver,) = start(send, 1, 1)
    targets = zeros() | {"d": torch.zeros(8, dtype=torch.float64)}
    with pytest.raises(
        WeightsError, match=r"^weights of version 1: d is \[7\], the model's is \[8\]"
    ):
        load_tensors(targets, receiver)
    assert all(not tensor.any() for tensor in targets.values())


def test_a_sender_that_dies_is_one_line(start):
    receiver = joined(start(send_and_die))
    receiver.receive_header()
    with pytest.raises(
        GroupError, match=r"^weights by ipc over 127\.0\.0\.1:\d+: broke off: "
    ) as told:
        list(receiver.tensors())
    assert "\n" not in str(told.value)


def receive_one_and_die(receivers):
    next(receivers[0].tensors())
    os._exit(3)


def test_a_receiver_that_dies_ends_the_sending_and_all_weights_are_taken_all_the_same():
    sender, taken = BroadcastSender("127.0.0.1", backend="ipc", timeout_s=30), []

    def weights():
        for name, tensor in tensors().items():
            taken.append(name)
            yield name, tensor

    sender.hold(1, {name: tuple(t.shape) for name, t in tensors().items()}, weights)
    receivers = sender.receivers(1, 1)
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=receive_one_and_die, args=(receivers,))
    process.start()
    with pytest.raises(WeightsError, match="broke off"):
        sender.send()
    process.join(30)
    assert process.exitcode == 3
    assert taken == list(tensors())  # the other ranks gather each tensor with this one


def test_weights_that_the_trainer_goes_on_with_cannot_be_had():
    sender = BroadcastSender("127.0.0.1", backend="ipc")
    sender.hold(3, {}, dict)
    assert sender.receivers(3, 0) == [] and sender.send() is None
    sender.drop()
    with pytest.raises(
        WeightsError, match="version 3 are no longer available: the trainer has moved on"
    ):
        sender.receivers(3, 1)


def test_a_handle_of_cuda_survives_json():
    handle = [b"\x00\xff", 4096, 0, b"ref", 8, b"", False]
    assert group.from_json(group.to_json(handle)) == handle
    assert group.to_json(handle)[0] == {"hex": "00ff"}


def test_a_handle_of_a_gpu_is_refused_on_another_device():
    handle = {"gpu": "GPU 1234", "handle": []}
    with pytest.raises(ValueError, match="the sender is on GPU 1234, the receiver on cpu"):
        group.open_buffer(handle, torch.device("cpu"))


def test_every_torch_opens_the_drivers_bare_handle_of_a_gpus_memory():
    bare = bytes(range(64))
    for version in (b"\x01", b"\x02", b"\x03"):  # torch 2.13 begins the third
        assert group.portable_handle(version + b"c" + bare) == bare
    assert group.portable_handle(bare) == bare
    assert group.portable_handle(b"\x04c" + bare + b"more") == b"\x04c" + bare + b"more"


def test_memory_of_expandable_segments_is_refused_with_what_to_do():
    with pytest.raises(ValueError, match="expandable_segments:True from PYTORCH_CUDA_ALLOC_CONF"):
        group.portable_handle(b"\x03e" + bytes(40))


def test_processes_with_different_versions_of_nccl_are_refused_on_each_of_them():
    store, told = HashStore(), r"rank 0 has 2\.30\.7, rank 1 has 2\.29\.7: install one in all of"
    with ThreadPoolExecutor(2) as pool:
        joining = [
            pool.submit(group.check_nccl_versions, store, rank, 2, version)
            for rank, version in enumerate(("2.30.7", "2.29.7"))
        ]
        for each in joining:
            with pytest.raises(ValueError, match=told):
                each.result()
    store.set("nccl/1", "2.30.7")
    group.check_nccl_versions(store, 0, 2, "2.30.7")


@pytest.mark.parametrize("before", [None, "0"])
def test_operations_of_nccl_are_waited_for_in_groups_of_weights_alone(monkeypatch, before):
    monkeypatch.delenv(group.BLOCKING_WAIT, raising=False)
    if before is not None:
        monkeypatch.setenv(group.BLOCKING_WAIT, before)
    with group.nccl_waits():
        assert os.environ["TORCH_NCCL_BLOCKING_WAIT"] == "1"
    assert os.environ.get("TORCH_NCCL_BLOCKING_WAIT") == before
