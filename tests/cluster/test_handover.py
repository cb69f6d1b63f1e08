"""Which trainer rank hands the weights to which engine."""

from types import SimpleNamespace

from ajet.cluster.trainer_group import Handover
from ajet.core.weight_sync.broadcast import BroadcastReceiver, HandoverReceiver


class Rank:
    """Stands for a rank's actor: its receivers have the rank's number as their port."""

    def __init__(self, number):
        self.number = number
        self.asked, self.has_sent = [], False
        self.receivers = SimpleNamespace(remote=self.make_receivers)
        self.send = SimpleNamespace(remote=self.begin_to_send)

    async def make_receivers(self, version, number):
        self.asked.append(number)
        size = number + 1
        return [
            BroadcastReceiver("here", self.number, rank, size, version, "ipc")
            for rank in range(1, size)
        ]

    def begin_to_send(self):
        self.has_sent = True


async def test_an_engine_is_handed_the_weights_by_the_ranks_on_its_gpus_in_their_order():
    ranks = tuple(map(Rank, range(4)))
    beside = {"engine 0": (1, 0), "engine 1": (3,)}
    wide, narrow = await Handover(ranks, beside, 7).make_sources(["engine 0", "engine 1"])
    assert isinstance(wide, HandoverReceiver) and wide.version == 7
    assert [(part.port, part.gpu) for part in wide.receivers] == [(1, 0), (0, 1)]
    assert isinstance(narrow, BroadcastReceiver) and (narrow.port, narrow.gpu) == (3, None)
    assert [rank.asked for rank in ranks] == [[1], [1], [0], [1]]
    assert all(rank.has_sent for rank in ranks)  # rank 2 too: they gather together


async def test_an_engine_that_is_replaced_is_handed_the_weights_alone():
    ranks = tuple(map(Rank, range(2)))
    beside = {"engine 0": (0,), "engine 1": (1,)}
    (source,) = await Handover(ranks, beside, 7).make_sources(["engine 1"])
    assert source.port == 1 and [rank.asked for rank in ranks] == [[0], [1]]
