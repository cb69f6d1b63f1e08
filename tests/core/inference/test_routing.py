"""The router's bookkeeping: nobody's place is lost, and the least busy one is always known."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from ajet.core.inference.routing import NoReplica, Routing, episode_of

SKEW = 2
EPISODES = st.integers(0, 5)
TURNS = st.integers(0, 3)
NAMES = st.sampled_from(["a", "b", "c", "d"])


class Book(RuleBasedStateMachine):
    """The same told to a Routing and to plain dicts that are searched through."""

    def __init__(self):
        super().__init__()
        self.routing = Routing(skew=SKEW)
        self.places = {}  # request -> replica
        self.replicas = set()
        self.homes = {}

    @rule(name=NAMES)
    def joined(self, name):
        self.routing.joined(name)
        self.replicas.add(name)

    @rule(name=NAMES)
    def lost(self, name):
        orphans = [request for request, where in self.places.items() if where == name]
        assert sorted(self.routing.lost(name)) == sorted(orphans)
        self.replicas.discard(name)
        for request in orphans:
            del self.places[request]

    @precondition(lambda self: self.replicas)
    @rule(episode=EPISODES, turn=TURNS)
    def assign(self, episode, turn):
        request = f"{episode}/{turn}"
        self.places.pop(request, None)
        least = min(map(self.count, self.replicas))
        name = self.routing.assign(request)
        home = self.homes.get(episode)
        if home in self.replicas and self.count(home) - least <= SKEW:
            assert name == home
        else:
            assert self.count(name) == least
        self.places[request] = self.homes[episode] = name

    @precondition(lambda self: not self.replicas)
    @rule()
    def nobody(self):
        with pytest.raises(NoReplica):
            self.routing.assign("9/0")

    @rule(episode=EPISODES, turn=TURNS)
    def done(self, episode, turn):
        self.routing.done(f"{episode}/{turn}")
        self.places.pop(f"{episode}/{turn}", None)

    @rule(episode=EPISODES)
    def leave(self, episode):
        self.routing.leave(str(episode))
        self.homes.pop(episode, None)

    def count(self, name):
        return sum(where == name for where in self.places.values())

    @invariant()
    def counts_agree(self):
        assert set(self.routing.names) == self.replicas
        assert {n: self.routing.in_flight(n) for n in self.replicas} == {
            n: self.count(n) for n in self.replicas
        }
        assert self.routing.num_in_flight == len(self.places)


TestBook = Book.TestCase
TestBook.settings = settings(max_examples=60, stateful_step_count=40)


def test_an_episode_stays_and_moves_when_its_replica_is_too_busy():
    routing = Routing(["a", "b"], skew=2)
    assert routing.assign("e/0") == "a"
    routing.done("e/0")
    busy = [f"x{number}/0" for number in range(6)]
    assert [routing.assign(name) for name in busy] == ["b", "a", "b", "a", "b", "a"]
    for name in (busy[0], busy[2]):
        routing.done(name)
    assert (routing.in_flight("a"), routing.in_flight("b")) == (3, 1)
    assert routing.assign("e/1") == "a"  # two more than b: not yet
    assert routing.assign("f/0") == "b"
    routing.done("f/0")
    routing.done("e/1")
    routing.assign("x1/1")  # a has four now, b one
    assert routing.assign("e/2") == "b" and routing.num_moved == 1
    routing.done("e/2")
    assert routing.assign("e/3") == "b"  # its prefix is there now


def test_a_request_that_is_tried_again_has_one_place():
    routing = Routing(["a", "b"])
    first = routing.assign("e/0")
    routing.lost(first)
    assert routing.assign("e/0") != first
    assert routing.num_in_flight == 1
    routing.done("e/0")
    routing.done("e/0")
    assert routing.num_in_flight == 0


def test_episodes_that_never_leave_are_forgotten_at_last():
    routing = Routing(["a", "b"], max_episodes=3)
    for number in range(10):
        routing.done(f"e{number}/0") or routing.assign(f"e{number}/0")
    assert routing.leave("e0") is None and routing.leave("e9") is not None


@given(st.integers(1, 30), st.integers(1, 300))
@settings(max_examples=30)
def test_new_episodes_are_spread_evenly(num_replicas, num_episodes):
    routing = Routing([f"r{n}" for n in range(num_replicas)])
    for number in range(num_episodes):
        routing.assign(f"e{number}/0")
    counts = [routing.in_flight(name) for name in routing.names]
    assert max(counts) - min(counts) <= 1


def test_the_episode_id_is_the_request_id_before_its_turn():
    assert episode_of("task/3/0007") == "task/3" and episode_of("alone") == "alone"
