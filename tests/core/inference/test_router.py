"""The router over hand-written replicas that die, stumble, hang and come back."""

import asyncio
import itertools
import random
from collections import Counter

import pytest
from loguru import logger

from ajet.core.errors import ModelError
from ajet.core.inference.endpoint import Completion, ContextOverflow, SamplingParams
from ajet.core.inference.replica import Gate, ReplicaDown
from ajet.core.inference.routed_endpoint import RoutedEndpoint
from ajet.core.inference.router import Router, RouterSettings
from ajet.core.weight_sync.manifest import SyncReport, WeightsError

SAMPLING = SamplingParams(max_tokens=6, seed=3)
FAST = RouterSettings(health_interval_s=0.01, health_timeout_s=0.05, wait_for_replica_s=5)


class Weights:
    version = 7
    can_be_read_again = True


class FakeReplica:
    """Samples the number of the place, one token a step; dies, hangs and stumbles when told to."""

    def __init__(self, name, events=None, step_s=0.0):
        self.name = name
        self.events = [] if events is None else events
        self.step_s = step_s
        self.version = None
        self.asked = []
        self.sampling = []
        self.seen = []
        self.left = []
        self.is_down = self.hangs = self.closed = False
        self.checks = []  # what the next health checks say; then `not is_down`
        self.gate = Gate()
        self.aborted = set()

    async def generate(self, prompt_ids, sampling, request_id):
        self.asked.append(request_id)
        self.seen.append(list(prompt_ids))
        self.sampling.append(sampling)
        await self.gate.enter(request_id)
        try:
            return await self._sample(prompt_ids, sampling, request_id)
        finally:
            self.gate.leave(request_id)

    async def _sample(self, prompt_ids, sampling, request_id):
        tokens, reason = [], "length"
        version = self.version or 0
        while len(tokens) < sampling.max_tokens and reason != "abort":
            await asyncio.sleep(self.step_s)
            while self.hangs and not self.closed:
                await asyncio.sleep(0.001)
            if self.is_down or self.closed:
                raise ReplicaDown(f"{self.name}: connection refused")
            tokens.append(len(prompt_ids) + len(tokens))
            reason = "abort" if request_id in self.aborted else "length"
        self.aborted.discard(request_id)
        logprobs = (-0.5,) * len(tokens)
        return Completion(tuple(prompt_ids), tuple(tokens), logprobs, reason, version)

    async def health(self):
        if self.checks:
            if not self.checks.pop(0):
                raise ReplicaDown(f"{self.name}: 503")
        elif self.hangs:
            await asyncio.sleep(60)
        elif self.is_down:
            raise ReplicaDown(f"{self.name}: connection refused")

    def abort(self, request_id):
        self.aborted.add(request_id)

    def leave(self, episode_id):
        self.left.append(episode_id)

    async def pause(self, abort=False):
        self.events.append(("pause", self.name, abort))
        self.gate.shut()
        if abort:
            self.aborted |= set(self.gate.inside)
        await self.gate.empty()

    async def resume(self):
        self.events.append(("resume", self.name))
        self.gate.open()

    async def sleep(self):
        self.events.append(("sleep", self.name))
        self.gate.shut()

    async def wake(self):
        self.events.append(("wake", self.name))

    async def load_weights(self, source, version):
        if self.is_down:
            raise ReplicaDown(f"{self.name}: connection refused")
        self.events.append(("load", self.name, version))
        self.version = version
        return SyncReport(version, 0.5, 100, f"sum{version}")

    async def empty_cache(self):
        if self.is_down:
            raise ReplicaDown(f"{self.name}: connection refused")
        self.events.append(("empty", self.name))

    async def close(self):
        self.closed = True


def _replicas(count, **options):
    return [FakeReplica(f"r{number}", **options) for number in range(count)]


async def _episode(endpoint, episode_id, turns, pause=0.0):
    ids, replies = [1, 2], []
    for turn in range(turns):
        reply = await endpoint.generate(ids, SAMPLING, f"{episode_id}/{turn:04d}")
        assert reply.prompt_ids == tuple(ids)
        replies.append(reply)
        ids = [*ids, *reply.token_ids, 0]
        await asyncio.sleep(pause)
    endpoint.leave(episode_id)
    return replies


async def test_an_episode_stays_with_its_replica_which_hears_that_it_left():
    replicas = _replicas(3)
    router = Router(replicas, FAST)
    endpoint = RoutedEndpoint(router)
    await asyncio.gather(*(_episode(endpoint, f"e{n}", 4) for n in range(9)))
    for replica in replicas:
        episodes = Counter(request.split("/")[0] for request in replica.asked)
        assert len(episodes) == 3 and set(episodes.values()) == {4}
        assert sorted(replica.left) == sorted(episodes)
    await router.close()
    assert all(replica.closed for replica in replicas)


async def test_a_death_in_the_middle_of_requests_is_not_seen_by_any_episode():
    replicas = _replicas(3, step_s=0.002)
    router = Router(replicas, FAST)
    endpoint = RoutedEndpoint(router)
    episodes = [asyncio.create_task(_episode(endpoint, f"e{n}", 5)) for n in range(12)]
    await asyncio.sleep(0.02)
    replicas[1].is_down = True
    done = await asyncio.gather(*episodes)
    assert all(len(replies) == 5 for replies in done)
    assert all(len(reply.token_ids) == 6 for replies in done for reply in replies)
    assert router.names == ["r0", "r2"] and endpoint.stats.num_retries >= 1
    await router.close()


async def test_a_replica_that_hangs_is_found_by_its_health_and_its_requests_go_elsewhere():
    replicas = _replicas(2, step_s=0.001)
    router = Router(replicas, FAST)
    endpoint = RoutedEndpoint(router)
    replicas[0].hangs = True
    done = await asyncio.wait_for(
        asyncio.gather(*(_episode(endpoint, f"e{n}", 1) for n in range(4))), 5
    )
    assert len(done) == 4 and router.names == ["r1"]
    await router.close()


async def test_a_dead_replica_is_replaced_with_the_weights_of_the_day():
    replicas, events = _replicas(2, step_s=0.001), []
    fresh = FakeReplica("r0", events)

    async def spawn(name):
        assert name == "r0"
        return fresh

    router = Router(replicas, FAST, spawn=spawn)
    endpoint = RoutedEndpoint(router)
    await router.load_weights(Weights(), 7)
    replicas[0].is_down = True
    await asyncio.gather(*(_episode(endpoint, f"e{n}", 2) for n in range(6)))
    while "r0" not in router.names:
        await asyncio.sleep(0.01)
    assert events[:2] == [("wake", "r0"), ("load", "r0", 7)] and router.stats.num_replaced == 1
    replies = await asyncio.gather(*(_episode(endpoint, f"f{n}", 1) for n in range(4)))
    assert fresh.asked and {reply.policy_version for (reply,) in replies} == {7}
    await router.close()


async def test_requests_wait_for_a_replacement_and_fail_in_one_line_when_there_is_none():
    ready = asyncio.Event()
    only = FakeReplica("r0")

    async def spawn(name):
        await ready.wait()
        return FakeReplica(name)

    only.is_down = True
    router = Router([only], FAST, spawn=spawn)
    endpoint = RoutedEndpoint(router)
    waiting = asyncio.create_task(_episode(endpoint, "e", 1))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    ready.set()
    assert len((await waiting)[0].token_ids) == 6
    await router.close()

    async def nobody(name):
        raise ModelError("r0: no GPU is free")

    router = Router([only], FAST, spawn=nobody)
    endpoint = RoutedEndpoint(router)
    with pytest.raises(ModelError) as caught:
        await endpoint.generate([1], SAMPLING, "e/0")
    assert str(caught.value) == "no inference replica is left (r0: no GPU is free)"
    with pytest.raises(ModelError, match=r"^no inference replica is left"):
        await RoutedEndpoint(Router([], FAST)).generate([1], SAMPLING, "e/0")
    await router.close()


async def test_a_check_that_fails_once_changes_nothing():
    replicas = _replicas(2)
    router = Router(replicas, FAST)
    endpoint = RoutedEndpoint(router)
    await _episode(endpoint, "e0", 1)
    for replica in replicas:
        replica.checks = [False, False, True] * 4
    for _ in range(60):
        await asyncio.sleep(0.01)
        assert len(router.names) == 2
    assert router.stats.num_lost == 0 and not any(replica.checks for replica in replicas)
    await router.close()


async def test_a_replica_that_stumbled_comes_back():
    replicas = _replicas(2)
    router = Router(replicas, FAST)
    endpoint = RoutedEndpoint(router)
    replicas[0].is_down, replicas[0].checks = True, [False, True, True, True]
    assert len((await _episode(endpoint, "e0", 1))[0].token_ids) == 6
    assert router.names == ["r1"]
    replicas[0].is_down = False
    while len(router.names) < 2:
        await asyncio.sleep(0.01)
    assert ("resume", "r0") in replicas[0].events
    await router.close()


async def test_a_request_that_breaks_every_replica_fails_alone():
    class Brittle(FakeReplica):
        async def _sample(self, prompt_ids, sampling, request_id):
            if prompt_ids == [666]:
                raise ReplicaDown(f"{self.name}: 500")
            return await super()._sample(prompt_ids, sampling, request_id)

    replicas = [Brittle(f"r{n}") for n in range(4)]
    router = Router(replicas, FAST)
    endpoint = RoutedEndpoint(router)
    with pytest.raises(ModelError, match=r"^request bad/0: 3 tries failed, the last one: r\d: 500"):
        await endpoint.generate([666], SAMPLING, "bad/0")
    while len(router.names) < 4:
        await asyncio.sleep(0.01)
    await _episode(endpoint, "good", 3)
    await router.close()


async def test_an_overlong_prompt_is_nobodys_fault():
    class Short(FakeReplica):
        async def generate(self, prompt_ids, sampling, request_id):
            raise ContextOverflow("too long")

    router = Router([Short("r0")], FAST)
    endpoint = RoutedEndpoint(router)
    with pytest.raises(ContextOverflow):
        await endpoint.generate([1], SAMPLING, "e/0")
    assert router.names == ["r0"] and endpoint.stats.num_retries == 0
    await router.close()


async def test_an_episode_moves_when_its_replica_is_too_busy():
    replicas = _replicas(2, step_s=0.002)
    router = Router(replicas, RouterSettings(skew=3))
    endpoint = RoutedEndpoint(router)
    await _episode_turn(endpoint, "home/0000")
    home = next(replica for replica in replicas if replica.asked)
    others = [asyncio.create_task(_episode_turn(endpoint, f"x{n}/0000")) for n in range(20)]
    await asyncio.sleep(0.005)
    other = replicas[1 - replicas.index(home)]
    other.step_s = 0
    while other.gate.inside:
        await asyncio.sleep(0.001)
    await _episode_turn(endpoint, "home/0001")
    await asyncio.gather(*others)
    await _episode_turn(endpoint, "home/0002")
    of_episode = [each[: len("home/0000")] for each in other.asked if each.startswith("home/")]
    assert of_episode == ["home/0001", "home/0002"]
    await router.close()


def _episode_turn(endpoint, request_id):
    return endpoint.generate([1, 2], SAMPLING, request_id)


async def test_requests_are_held_while_weights_change():
    events = []
    replicas = _replicas(2, events=events, step_s=0.002)
    router = Router(replicas, FAST)
    endpoint = RoutedEndpoint(router)
    episodes = [asyncio.create_task(_episode(endpoint, f"e{n}", 6)) for n in range(10)]
    await asyncio.sleep(0.02)
    await router.pause()
    assert not any(replica.gate.inside for replica in replicas)
    report = await router.load_weights(Weights(), 7)
    assert report == SyncReport(7, 0.5, 200, "sum7")
    asked = sum(len(replica.asked) for replica in replicas)
    await asyncio.sleep(0.02)
    assert sum(len(replica.asked) for replica in replicas) == asked  # held here, not there
    await router.resume()
    done = await asyncio.gather(*episodes)
    versions = [[reply.policy_version for reply in replies] for replies in done]
    assert all(found == sorted(found) and found[0] == 0 and found[-1] == 7 for found in versions)
    assert [event[0] for event in events] == ["pause"] * 2 + ["load"] * 2 + ["resume"] * 2
    await router.close()


async def test_a_router_without_replicas_sleeps_wakes_and_loads_nothing():
    router = Router([], FAST)
    await router.pause()
    await router.sleep()
    await router.wake()
    assert await router.load_weights(Weights(), 7) == SyncReport(7, 0.0, 0, "")
    await router.resume()
    await router.empty_caches()
    await router.close()


async def test_every_replica_forgets_its_prefixes_and_one_that_is_down_is_no_error():
    events = []
    replicas = _replicas(3, events=events)
    replicas[1].is_down = True
    router = Router(replicas, FAST)
    await router.empty_caches()
    assert events == [("empty", "r0"), ("empty", "r2")] and router.names == ["r0", "r2"]
    await router.close()


async def test_a_request_that_was_ended_in_a_queue_has_the_version_of_its_tokens():
    """Its first piece has none, and no weights that it could name."""

    class Queued(FakeReplica):
        async def _sample(self, prompt_ids, sampling, request_id):
            if len(self.asked) == 1:
                return Completion(tuple(prompt_ids), (), (), "abort", 0)
            return await super()._sample(prompt_ids, sampling, request_id)

    replica = Queued("r0")
    replica.version = 2
    reply = await RoutedEndpoint(Router([replica])).generate([5], SAMPLING, "e/0")
    assert len(reply.token_ids) == 6 and reply.policy_version == 2


async def test_an_aborted_request_goes_on_from_its_tokens_after_the_change():
    replica = FakeReplica("r0", step_s=0.005)
    router = Router([replica])
    endpoint = RoutedEndpoint(router)
    request = asyncio.create_task(endpoint.generate([1, 2], SAMPLING, "e/0"))
    await asyncio.sleep(0.013)
    await router.pause(abort=True)
    await router.load_weights(Weights(), 7)
    assert not request.done()
    await router.resume()
    reply = await request
    assert reply.prompt_ids == (1, 2) and reply.token_ids == (2, 3, 4, 5, 6, 7)
    assert reply.finish_reason == "length" and len(reply.logprobs) == 6
    assert reply.policy_version == 0  # the oldest of its tokens
    first, second = replica.sampling
    assert reply.versions == ((6 - second.max_tokens, 0), (second.max_tokens, 7))
    assert 0 < second.max_tokens < 6 and second.seed != first.seed
    assert replica.seen[1] == [1, 2, 2, 3, 4, 5, 6, 7][: 8 - second.max_tokens]
    await router.close()


async def test_a_caller_ends_its_request_wherever_it_is():
    replica = FakeReplica("r0", step_s=0.002)
    router = Router([replica], FAST)
    endpoint = RoutedEndpoint(router)
    running = asyncio.create_task(endpoint.generate([1], SAMPLING, "e/0"))
    await asyncio.sleep(0.005)
    endpoint.abort("e/0")
    reply = await running
    assert reply.finish_reason == "abort" and 0 < len(reply.token_ids) < 6
    await router.pause()
    held = asyncio.create_task(endpoint.generate([1], SAMPLING, "e/1"))
    await asyncio.sleep(0.005)
    endpoint.abort("e/1")
    assert (await held).token_ids == ()
    endpoint.abort("unknown/0")
    cancelled = asyncio.create_task(endpoint.generate([1], SAMPLING, "e/2"))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    await router.resume()
    assert len((await endpoint.generate([1], SAMPLING, "e/2")).token_ids) == 6
    await router.close()


class Sent:
    """A delivery: each time so many sources, all of which must be taken for one to be whole."""

    version = 7

    def __init__(self):
        self.begun = []

    async def make_sources(self, names):
        self.begun.append(names)
        taken = asyncio.Barrier(len(names))
        return [taken] * len(names)


class Receiver(FakeReplica):
    """Dies in the middle of its first load if it is to; the others then miss something."""

    dies = False

    async def load_weights(self, source, version):
        if self.dies:
            self.is_down = True
            await source.abort()
        try:
            await source.wait()
        except asyncio.BrokenBarrierError:
            if not self.is_down:
                raise WeightsError("broke off") from None
        return await super().load_weights(source, version)


async def test_weights_that_are_sent_go_to_all_and_again_to_one_that_comes_later():
    replicas, fresh, weights = [Receiver("r0"), Receiver("r1")], Receiver("r0"), Sent()

    async def spawn(name):
        return fresh

    router = Router(replicas, FAST, spawn=spawn)
    endpoint = RoutedEndpoint(router)
    await router.load_weights(weights, 7)
    assert weights.begun == [["r0", "r1"]]
    replicas[0].is_down = True
    await asyncio.gather(*(_episode(endpoint, f"e{n}", 2) for n in range(6)))
    while "r0" not in router.names:
        await asyncio.sleep(0.01)
    assert weights.begun == [["r0", "r1"], ["r0"]] and fresh.version == 7
    await router.close()


async def test_a_replica_that_dies_on_the_way_does_not_keep_weights_from_the_others():
    replicas, weights = [Receiver("r0"), Receiver("r1"), Receiver("r2")], Sent()
    replicas[1].dies = True
    router = Router(replicas, FAST)
    report = await router.load_weights(weights, 7)
    assert weights.begun == [["r0", "r1", "r2"], ["r0", "r2"]] and report.num_bytes == 200
    assert router.names == ["r0", "r2"]
    await router.close()


async def test_weights_for_an_engine_that_is_being_replaced_wait_for_the_other_one():
    ready, only, fresh = asyncio.Event(), FakeReplica("r0"), FakeReplica("r0")

    async def spawn(name):
        await ready.wait()
        return fresh

    router = Router([only], FAST, spawn=spawn)
    endpoint = RoutedEndpoint(router)
    only.is_down = True
    waiting = asyncio.create_task(_episode(endpoint, "e", 1))
    loading = asyncio.create_task(router.load_weights(Weights(), 3))
    await asyncio.sleep(0.1)
    assert not loading.done()
    ready.set()
    assert (await loading).version == 3 and fresh.version == 3
    assert [reply.policy_version for reply in await waiting] == [3]
    await router.close()


async def test_weights_that_differ_between_replicas_are_an_error():
    class Other(FakeReplica):
        async def load_weights(self, source, version):
            return SyncReport(version, 0.1, 100, "another")

    with pytest.raises(WeightsError, match="version 7: replicas hold different ones"):
        await Router([FakeReplica("r0"), Other("r1")], FAST).load_weights(Weights(), 7)
    down = FakeReplica("r2")
    down.is_down = True
    router = Router([down, FakeReplica("r3")], FAST)
    assert (await router.load_weights(Weights(), 7)).num_bytes == 100
    assert router.names == ["r3"]
    await router.close()


async def test_a_replica_that_was_away_gets_the_weights_and_the_sleep_that_it_missed():
    replicas = _replicas(2)
    router = Router(replicas, FAST)
    endpoint = RoutedEndpoint(router)
    await router.load_weights(Weights(), 6)
    replicas[0].is_down = True
    await _episode(endpoint, "e", 1)
    await router.sleep()
    await router.load_weights(Weights(), 7)
    replicas[0].is_down = False
    while len(router.names) < 2:
        await asyncio.sleep(0.01)
    assert replicas[0].version == 7 and replicas[0].events[-1] == ("sleep", "r0")
    await router.wake()
    await router.resume()
    assert replicas[0].events[-1] == ("resume", "r0")
    await router.close()


async def test_a_replica_that_was_away_gets_weights_of_the_version_that_it_has():
    """A trainer that lost an update makes other weights of the same version."""
    replicas = _replicas(2)
    router = Router(replicas, FAST)
    endpoint = RoutedEndpoint(router)
    await router.load_weights(Weights(), 2)
    replicas[0].is_down = True
    await _episode(endpoint, "e", 1)
    await router.load_weights(Weights(), 1)
    await router.load_weights(Weights(), 2)
    replicas[0].is_down = False
    while len(router.names) < 2:
        await asyncio.sleep(0.01)
    assert replicas[0].events.count(("load", "r0", 2)) == 2
    await router.close()


@pytest.mark.parametrize("comes_again", [True, False], ids=["others come", "they are those"])
async def test_a_server_loads_its_version_again_if_weights_of_it_came_while_it_started(comes_again):
    """It has read weights of version 2, maybe those that a lost attempt of the trainer
    published."""
    replicas, may_start, fresh = _replicas(2), asyncio.Event(), FakeReplica("r0")
    fresh.version = 2

    async def spawn(name):
        await may_start.wait()
        return fresh

    router = Router(replicas, FAST, spawn=spawn)
    await router.load_weights(Weights(), 2)
    replicas[0].is_down = True
    await _episode(RoutedEndpoint(router), "e", 1)
    while not replicas[0].closed:
        await asyncio.sleep(0.01)
    if comes_again:
        await router.load_weights(Weights(), 2)
    may_start.set()
    while len(router.names) < 2:
        await asyncio.sleep(0.01)
    assert (("load", "r0", 2) in fresh.events) == comes_again
    await router.close()


async def test_an_engine_that_was_given_up_is_tried_again_with_the_next_weights():
    """The weights of the trainer before may have been gone when its replacements asked for them."""

    class Picky(FakeReplica):
        async def load_weights(self, source, version):
            if version == 2:
                raise WeightsError("weights of version 2 are not there")
            return await super().load_weights(source, version)

    only, spawned = FakeReplica("r0"), []

    async def spawn(name):
        spawned.append(Picky(name))
        return spawned[-1]

    router = Router([only], FAST, spawn=spawn)
    endpoint = RoutedEndpoint(router)
    await router.load_weights(Weights(), 2)
    only.is_down = True
    with pytest.raises(ModelError, match="weights of version 2 are not there"):
        await asyncio.wait_for(endpoint.generate([1], SAMPLING, "e/0"), 5)
    assert len(spawned) == 3 and router.names == []
    report = await asyncio.wait_for(router.load_weights(Weights(), 3), 5)
    assert report.version == 3 and router.names == ["r0"]
    assert (await endpoint.generate([1], SAMPLING, "e/1")).policy_version == 3
    await router.close()


async def test_nothing_is_put_in_a_dead_ones_place_while_the_engines_sleep():
    replicas, spawned = _replicas(2), []

    async def spawn(name):
        spawned.append(asyncio.get_running_loop().time())
        if len(spawned) < 3:
            raise ModelError(f"{name}: no GPU is free")
        return FakeReplica(name)

    router = Router(replicas, FAST, spawn=spawn)
    endpoint = RoutedEndpoint(router)
    await _episode(endpoint, "e", 1)
    await router.pause()
    await router.sleep()
    replicas[0].is_down = True
    while router.names != ["r1"]:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert not spawned
    await router.wake()
    await router.resume()
    while len(router.names) < 2:
        await asyncio.sleep(0.01)
    waits = [later - sooner for sooner, later in itertools.pairwise(spawned)]
    assert len(waits) == 2 and min(waits) >= 0.9 * FAST.health_interval_s
    await router.close()


async def test_sleep_waits_for_what_is_put_in_a_dead_ones_place_and_it_sleeps_too():
    replicas, may_come, new = _replicas(2), asyncio.Event(), FakeReplica("r0")

    async def spawn(name):
        await may_come.wait()
        return new

    router = Router(replicas, FAST, spawn=spawn)
    endpoint = RoutedEndpoint(router)
    await _episode(endpoint, "e", 1)
    replicas[0].is_down = True
    while router.stats.num_lost == 0:
        await asyncio.sleep(0.01)
    await asyncio.sleep(5 * FAST.health_interval_s)
    asleep = asyncio.create_task(router.sleep())
    await asyncio.sleep(5 * FAST.health_interval_s)
    assert not asleep.done() and not new.events
    may_come.set()
    await asleep
    assert new.events[0] == ("sleep", "r0")  # before the memory is somebody else's
    await router.close()


async def test_a_replica_that_missed_the_wake_is_woken_before_anything_else():
    class Sleepy(FakeReplica):
        is_awake = misses = True

        async def sleep(self):
            self.is_awake = False
            await super().sleep()

        async def wake(self):
            if self.misses:
                self.misses = False
                raise ReplicaDown(f"{self.name}: POST /wake_up: 503")
            self.is_awake = True
            await super().wake()

    replicas = [Sleepy("r0"), FakeReplica("r1")]
    router = Router(replicas, FAST)
    endpoint = RoutedEndpoint(router)
    await _episode(endpoint, "e", 1)
    await router.sleep()
    await router.wake()
    while len(router.names) < 2:
        await asyncio.sleep(0.01)
    await router.resume()
    assert replicas[0].is_awake
    assert [event[0] for event in replicas[0].events] == ["sleep", "wake", "pause", "resume"]
    await router.close()


@pytest.mark.parametrize("error", [ModelError("r0: GET /health: 404"), OSError("no more files")])
async def test_a_watcher_outlives_what_it_meets(error):
    class Odd(FakeReplica):
        async def health(self):
            raise error

    met = []

    async def spawn(name):
        if not met:
            met.append(name)
            raise OSError("no more files")
        return FakeReplica(name)

    said = []
    sink = logger.add(lambda message: said.append(message.record["message"]))
    replicas = [Odd("r0"), FakeReplica("r1")]
    router = Router(replicas, FAST, spawn=spawn)
    endpoint = RoutedEndpoint(router)
    await _episode(endpoint, "e", 1)
    async with asyncio.timeout(5):
        while not router.stats.num_replaced or len(router.names) < 2:
            await asyncio.sleep(0.01)
    logger.remove(sink)
    assert "inference replica r0: its watcher raised OSError: no more files" in said
    await router.close()


async def test_a_replica_is_not_lost_while_it_loads():
    class Busy(FakeReplica):
        async def load_weights(self, source, version):
            self.checks = [False] * 99
            await asyncio.sleep(0.2)
            self.checks = []
            return await super().load_weights(source, version)

    router = Router([Busy("r0")], FAST)
    endpoint = RoutedEndpoint(router)
    await _episode(endpoint, "e", 1)
    await router.load_weights(Weights(), 7)
    assert router.names == ["r0"] and router.stats.num_lost == 0
    await asyncio.sleep(0.05)
    assert router.names == ["r0"] and router.stats.num_lost == 0
    await router.close()


async def test_a_request_given_up_while_it_waits_for_a_place_is_not_sent():
    ready, only, fresh = asyncio.Event(), FakeReplica("r0"), FakeReplica("r0")

    async def spawn(name):
        await ready.wait()
        return fresh

    only.is_down = True
    router = Router([only], FAST, spawn=spawn)
    endpoint = RoutedEndpoint(router)
    waiting = asyncio.create_task(endpoint.generate([1], SAMPLING, "e/0"))
    while router.names:
        await asyncio.sleep(0.01)
    endpoint.abort("e/0")
    ready.set()
    reply = await waiting
    assert (reply.finish_reason, reply.token_ids, fresh.asked) == ("abort", (), [])
    assert len((await endpoint.generate([1], SAMPLING, "e/1")).token_ids) == 6
    await router.close()


async def test_a_thousand_episodes_in_flight_survive_deaths_and_pauses():
    luck = random.Random(5)
    replicas = _replicas(8, step_s=0.001)

    async def spawn(name):
        return FakeReplica(name, step_s=0.001)

    router = Router(replicas, FAST, spawn=spawn)
    endpoint = RoutedEndpoint(router)
    episodes = [
        asyncio.create_task(_episode(endpoint, f"e{n:04d}", 3, luck.random() * 0.01))
        for n in range(1000)
    ]
    await asyncio.sleep(0.05)
    for replica in (replicas[2], replicas[5]):
        replica.is_down = True
    await router.pause()
    await router.load_weights(Weights(), 7)
    await router.resume()
    done = await asyncio.gather(*episodes)
    assert all(len(reply.token_ids) == 6 for replies in done for reply in replies)
    assert endpoint.stats.num_requests == 3000
    await router.close()


class DistantRouter:
    """A router in another process: what it is told arrives later, and a call that its caller has
    cancelled goes on there until it is told that nobody waits."""

    def __init__(self, router):
        self.router = router
        self.replica, self.report_down = router.replica, router.report_down

    async def assign(self, request_id):
        call = asyncio.ensure_future(self.router.assign(request_id))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            call.add_done_callback(lambda call: call.exception() or self.done(request_id))
            raise

    def done(self, request_id):
        asyncio.get_running_loop().call_later(0.02, self.router.done, request_id)

    def give_up(self, request_id):
        asyncio.get_running_loop().call_later(0.02, self.router.give_up, request_id)


@pytest.mark.parametrize("is_held", [False, True])
async def test_an_episode_that_begins_again_meets_nothing_of_its_first_try(is_held):
    router = Router([FakeReplica("r0")], FAST)
    endpoint = RoutedEndpoint(DistantRouter(router))
    if is_held:
        await router.pause()
    first = asyncio.create_task(endpoint.generate([5], SAMPLING, "e/0001"))
    await asyncio.sleep(0)
    endpoint.abort("e/0001")
    first.cancel()
    await asyncio.wait([first])
    if is_held:
        await router.resume()
    else:
        await asyncio.sleep(0.1)  # it was given up with a replica already
    reply = await endpoint.generate([5], SAMPLING, "e/0001")
    assert (reply.token_ids, reply.finish_reason) == ((1, 2, 3, 4, 5, 6), "length")
    await asyncio.sleep(0.1)
    assert router._gate.inside == [] and not router._given_up
    await router.close()


async def test_a_gate_that_is_shut_again_at_once_holds_what_it_held():
    gate, through = Gate(), []

    async def request():
        through.append(await gate.enter("e/0000"))

    gate.shut()
    waiting = asyncio.create_task(request())
    await asyncio.sleep(0)
    gate.open()
    gate.shut()
    await asyncio.wait_for(gate.empty(), 1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert through == [] and gate.inside == []
    gate.open()
    await waiting
    assert through == [True] and gate.inside == ["e/0000"]
