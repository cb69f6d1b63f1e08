"""The shares of clients in a batch: worked out by hand, kept exactly, also after a restart."""

import asyncio

import pytest

from ajet import Task
from ajet.core.config.services import SharesConfig
from ajet.serve.exchange.clients import Shares
from ajet.serve.exchange.exchange import BeginRequest, EpisodeExchange
from tests.serve.exchange.served import TASKS, MemoryJournal, served

TWO = {"start": {"a": 0.5, "b": 0.5}, "end": {"a": 0.0, "b": 1.0}, "steps": 200}


@pytest.mark.parametrize(
    ("weights", "batch_size", "step", "groups"),
    [
        ({"start": {"a": 0.5, "b": 0.5}}, 64, 1, {"a": 32, "b": 32}),
        ({"start": {"a": 3, "b": 1}}, 4, 9, {"a": 3, "b": 1}),
        # 2.5 and 2.5: of equal remainders, the first gets the group.
        ({"start": {"a": 0.5, "b": 0.5}}, 5, 1, {"a": 3, "b": 2}),
        # 1.33 each of 4, and 2.33, 1.17, 0.5 of 4: the largest remainder is b's 0.5.
        ({"start": {"a": 1, "b": 1, "c": 1}}, 4, 1, {"a": 2, "b": 1, "c": 1}),
        ({"start": {"a": 14, "b": 7, "c": 3}}, 4, 1, {"a": 2, "b": 1, "c": 1}),
        (TWO, 64, 1, {"a": 32, "b": 32}),
        (TWO, 64, 101, {"a": 16, "b": 48}),
        (TWO, 64, 201, {"a": 0, "b": 64}),
        (TWO, 64, 999, {"a": 0, "b": 64}),
        # A quarter of the way: (1 + cos(pi / 4)) / 4 = 0.42678 of 64 is 27.3.
        (TWO | {"schedule": "cosine"}, 64, 51, {"a": 27, "b": 37}),
    ],
)
def test_groups_of_a_batch_are_shared_by_weight_and_add_up(weights, batch_size, step, groups):
    assert Shares(SharesConfig(**weights), batch_size).groups(step) == groups


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({"start": {"a": 0.0}}, "a weight must be above 0"),
        ({"start": {"a": 1.0}, "end": {"b": 1.0}}, "must name the same clients"),
        ({"start": {"a": -1.0}}, "greater than or equal to 0"),
    ],
)
def test_weights_that_share_nothing_are_refused(weights, reason):
    with pytest.raises(ValueError, match=reason):
        SharesConfig(**weights)


def exchange_of(batch_size, **start):
    shares = Shares(SharesConfig(start=start), batch_size)
    return EpisodeExchange(tasks="client", shares=shares)


async def feed(server, client, number, **options):
    """Runs `number` groups of two episodes each, as fast as the server lets it."""
    groups = []
    for n in range(number):
        task = {"task_id": f"{client}{n}"}
        for member in range(2):
            claim = await server.begin(client=client, task=task, **options)
            await server.end(claim, float(member))
        groups.append((claim["step"], claim["group_id"]))
    return groups


async def test_each_batch_has_exactly_the_shares_however_fast_a_client_is():
    async with served(exchange=exchange_of(4, fast=3, slow=1)) as server:
        step = server.rollout([*TASKS, Task("t3", "q")], step=1)
        fast = asyncio.create_task(feed(server, "fast", 6))
        while server.exchange.status()["num_waiting_clients"] == 0:
            await asyncio.sleep(0.01)  # it has its three groups, and asks for a fourth
        assert server.exchange.status()["num_offered"] == 2
        slow = await feed(server, "slow", 1)
        await step
        second = server.rollout([*TASKS, Task("t3", "q")], step=2)
        slow += await feed(server, "slow", 1)
        groups = await second
        begun = [step for step, _ in await fast]
    assert begun == [1, 1, 1, 2, 2, 2]
    assert [step for step, _ in slow] == [1, 2]
    names = [t.output.metadata["client_name"] for g in groups for t in g.trajectories[:1]]
    assert sorted(names) == ["fast", "fast", "fast", "slow"]


async def test_a_client_without_a_share_is_refused_by_name():
    async with served(exchange=exchange_of(4, math=1)) as server:
        body = {"client": "code", "task": {"task_id": "t"}}
        answer = await server.post("/episodes", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "client must be one of ajet.serve.shares: math"


async def test_a_client_may_limit_its_own_groups_of_a_step():
    async with served(exchange=EpisodeExchange(tasks="client")) as server:
        step = server.rollout(step=1)
        await feed(server, "a", 1, max_groups=1)
        body = {"client": "a", "task": {"task_id": "x"}, "max_groups": 1, "wait_s": 0.2}
        assert (await server.post("/episodes", body)).status_code == 503
        await feed(server, "b", 2)
        await step
        none = await server.post("/episodes", body | {"max_groups": 0})
    assert none.status_code == 400


async def test_a_validation_is_not_shared():
    async with served(exchange=exchange_of(1, a=1, b=1)) as server:
        step = server.rollout(TASKS[:2], num_repeat=1, mode="eval")
        for n in range(2):
            await server.play(client="b", task={"task_id": f"t{n}"})
        assert len(await step) == 2


async def test_after_a_restart_the_groups_are_still_their_clients():
    journal = MemoryJournal()
    async with served(exchange=exchange_of(2, a=1, b=1), journal=journal) as server:
        server.rollout(TASKS[:2], step=1)
        claim = await server.begin(client="a", task={"task_id": "a0"})
        await server.end(claim)
    async with served(exchange=exchange_of(2, a=1, b=1), journal=journal) as server:
        step = server.rollout(TASKS[:2], step=1)
        body = {"client": "a", "task": {"task_id": "a1"}, "wait_s": 0.2}
        assert (await server.post("/episodes", body)).status_code == 503
        second = await server.begin(client="a", task={"task_id": "a0"})
        assert second["group_id"] == claim["group_id"]
        await server.end(second)
        await feed(server, "b", 1)
        await step


async def test_the_status_tells_who_feeds_what():
    clock = iter(range(1000))
    exchange = EpisodeExchange(tasks="client", clock=lambda: float(next(clock)))
    async with served(exchange=exchange) as server:
        server.rollout(TASKS[:2], step=1)
        await feed(server, "a", 1)
        await server.begin(client="b", task={"task_id": "b0"})
        waiting = exchange.begin(BeginRequest(task=Task("c0", "q"), client="c", mode="eval"))
        rows = {row.pop("client"): row for row in exchange.status()["clients"]}
        exchange.withdraw(waiting)
    assert rows["b"].pop("silent_s") > 0
    assert rows == {
        "a": numbers(num_groups=1, num_ended={"ok": 2}, silent_s=None),
        "b": numbers(num_groups=1, num_running=1),
        "c": numbers(num_waiting=1, silent_s=None),
    }


def numbers(**changed):
    zero = {"num_running": 0, "num_waiting": 0, "num_groups": 0, "max_groups": None}
    return zero | {"num_ended": {}} | changed


async def test_a_group_keeps_its_task_when_a_later_step_is_offered_beside_it():
    """On backbone trinity the explorer is steps ahead."""
    async with served(exchange=exchange_of(2, a=1, b=1)) as server:
        first = server.rollout(TASKS[:2], step=1)
        claim = await server.begin(client="a", task={"task_id": "a0"})
        second = server.rollout(TASKS[:2], step=2)
        await asyncio.sleep(0.1)
        other = await server.begin(client="a", task={"task_id": "a1"})
        assert other["group_id"].startswith("000002-"), "its group of step 1 is begun"
        again = await server.begin(client="a", task={"task_id": "a0"})
        assert again["group_id"] == claim["group_id"]
        for each in (claim, other, again):
            await server.end(each)
        await feed(server, "b", 1)
        server.exchange.step_trained(1, await first)
        await server.end(await server.begin(client="a", task={"task_id": "a1"}))
        await feed(server, "b", 1)
        await second
