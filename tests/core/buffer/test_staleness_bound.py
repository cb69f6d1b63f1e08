"""One bound on the age of tokens: its pure rules, and a run of them under adversarial delays."""

import heapq
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.core.buffer.buffer import (
    MEMORY,
    FinishedGroup,
    GroupBuffer,
    InFlight,
    plan_index,
    step_and_number,
)
from ajet.core.buffer.priority import PRIORITIES
from ajet.core.buffer.staleness import (
    StalenessBound,
    age_histogram,
    old_key_metrics,
    staleness_metrics,
    version_range,
)
from ajet.core.errors import ConfigError
from ajet.core.trajectory.turn import TurnNotes
from tests.core.buffer.group_makers import group, turn


class SimulatedRun:
    """An explorer and a trainer with a clock that is told what everything takes."""

    def __init__(self, bound, steps, draw_s, train_s, priority="oldest", restarts=False):
        self.bound, self.steps, self.draw_s, self.train_s = bound, steps, draw_s, train_s
        self.buffer = GroupBuffer(MEMORY, bound, priority=PRIORITIES[priority])
        self.restarts = restarts
        self.version = self.published = self.num_begun = 0
        self.now, self.num_events = 0.0, 0
        self.events = []  # (time, number, what, argument)
        self.training = None
        self.begun_at = {}
        self.trained, self.expired = [], []

    def run(self):
        self.act()
        while self.version < self.steps:
            assert self.events, "nobody can go on"
            self.now, _, what, argument = heapq.heappop(self.events)
            getattr(self, what)(argument)
            self.act()
        self.buffer.close()
        return self

    def after(self, seconds, what, argument=None):
        self.num_events += 1
        heapq.heappush(self.events, (self.now + seconds, self.num_events, what, argument))

    def act(self):
        """Whoever can begin something begins it. What the trainer finds too old makes room."""
        size = self.bound.groups_per_step
        if self.training is None and self.version < self.steps:
            taken = self.buffer.take(self.version, size)
            if taken is not None:
                self.training = taken
                self.expired += [(self.version, item) for item in taken.expired]
                self.after(self.train_s(), "updated")
        for _ in range(self.buffer.capacity_left(self.published, self.steps)):
            step, number = divmod(self.num_begun, size)
            self.begin(plan_index(step + 1, number))
            self.num_begun += 1

    def begin(self, index):
        self.buffer.begin([InFlight(index, 0, self.published)])
        self.begun_at[index] = (self.published, self.version)
        self.after(self.draw_s(), "finished", (index, self.published))

    def finished(self, argument):
        index, version = argument
        if self.begun_at[index][0] != version:
            return  # it was begun again meanwhile
        made = group(
            step_and_number(index)[1],
            version,
            newest=self.published,
            step=step_and_number(index)[0],
        )
        self.buffer.put([FinishedGroup(index, made)], version)

    def updated(self, _):
        self.trained += [(self.version, item) for item in self.training.items]
        self.version += 1
        self.buffer.mark_trained(self.version)
        self.training = None
        if self.bound.is_due(self.version, self.published):
            self.published = self.version
            if self.restarts:
                for each in self.buffer.in_flight():
                    self.begin(each.index)


def ages(run):
    return [version - version_range(item.group)[0] for version, item in run.trained]


@st.composite
def bounds(draw, waits=None):
    interval = draw(st.integers(1, 3))
    size = draw(st.integers(1, 3))
    ahead = draw(st.integers(0, 2 * size))
    slack = draw(st.integers(0, 1))
    needed = interval - 1 + -(-ahead // size)
    waits = draw(st.booleans()) if waits is None else waits
    return StalenessBound(needed + slack, size, interval, ahead, waits)


def clock(seed, tail):
    """Mostly quick, sometimes very slow; the worst kind of tool."""
    rng = random.Random(seed)
    return lambda: rng.random() if rng.random() > tail else 1 + 50 * rng.random()


@settings(max_examples=12)
@given(
    bounds(),
    st.integers(1, 6),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.sampled_from([0.0, 0.3, 5.0]),
    st.sampled_from(["oldest", "newest"]),
    st.booleans(),
)
def test_no_token_is_ever_older_than_the_bound(
    bound, steps, seed, tail, train_s, priority, restarts
):
    draws = clock(seed, tail)
    run = SimulatedRun(bound, steps, draws, lambda: train_s, priority, restarts).run()
    assert max(ages(run)) <= bound.max_staleness
    assert len(run.trained) == steps * bound.groups_per_step
    # Every group that was begun is trained, or has expired; none is trained twice.
    indices = [item.index for _, item in run.trained + run.expired]
    assert len(set(indices)) == len(indices)
    for version, item in run.expired:
        assert version - version_range(item.group)[0] > bound.max_staleness


@settings(max_examples=12)
@given(bounds(waits=True), st.integers(1, 6), st.integers(0, 10**6), st.sampled_from([0.1, 0.5]))
def test_a_trainer_that_waits_loses_no_group(bound, steps, seed, tail):
    draws = clock(seed, tail)
    run = SimulatedRun(bound, steps, draws, lambda: 0.2).run()
    assert run.expired == []
    assert len(run.trained) == len(run.begun_at) == steps * bound.groups_per_step


@settings(max_examples=8)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 10**6))
def test_staleness_zero_is_the_synchronous_order(size, steps, seed):
    run = SimulatedRun(StalenessBound(0, size), steps, clock(seed, 0.3), lambda: 1.0).run()
    expected = [(s, plan_index(s + 1, n)) for s in range(steps) for n in range(size)]
    assert [(version, item.index) for version, item in run.trained] == expected
    for index, (published, version) in run.begun_at.items():
        assert published == version == step_and_number(index)[0] - 1


def test_a_step_ahead_hides_the_slower_of_the_two():
    bound = StalenessBound(1, 1, groups_ahead=1)
    run = SimulatedRun(bound, 10, lambda: 1.0, lambda: 1.0).run()
    assert run.now == 11.0  # one to begin with, then each second a step; 20 in turns
    assert sorted(set(ages(run))) == [0, 1]


def test_a_lead_beyond_the_bound_is_refused():
    with pytest.raises(ConfigError, match=r"trinity\.max_staleness=1"):
        StalenessBound(1, 4, sync_interval=2, groups_ahead=1)


def test_tokens_of_lost_updates_have_the_age_of_the_way_over_the_checkpoint():
    # Versions 4 and 5 were lost after 3: 4 is one update away from it, 5 is two; the step at 4 is
    # one on the other side.
    assert age_histogram(group(0, 2, newest=5), 4, lost_after=3) == {2: 4, 3: 2}
    assert age_histogram(group(0, 4), 4, lost_after=3) == {2: 6}
    assert age_histogram(group(0, 3), 4, lost_after=3) == {1: 6}


def test_a_reply_during_which_the_weights_changed_counts_token_by_token():
    """Three tokens, the first two of version 2, the last of 4; a stop string cut a fourth."""
    plain = group(0, 2)
    notes = TurnNotes(versions=[[2, 2], [2, 4]])
    changed = replace(turn([1, 2], [3, 4, 5], 2), notes=notes)
    assert changed.versions == [(2, 2), (1, 4)]
    member = replace(plain.trajectories[0], turns=(changed,))
    one = replace(plain, trajectories=(member,))
    assert age_histogram(one, 4) == {2: 2, 0: 1}
    assert version_range(one) == (2, 4)


def test_the_histogram_counts_trained_tokens_by_their_own_age():
    # Two episodes each: two tokens of version 3 and one of version 5, and of versions 5 and 5.
    counts = age_histogram(group(0, 3, newest=5), version=5) + age_histogram(group(1, 5), 5)
    assert counts == {2: 4, 0: 8}
    metrics = staleness_metrics(counts)
    assert metrics["staleness/max"] == 2
    assert metrics["staleness/mean"] == pytest.approx(8 / 12)
    assert metrics["staleness/age_0"] == pytest.approx(8 / 12)
    assert staleness_metrics({}) == {}


def test_old_keys_are_those_before_a_trained_call_on_average():
    one = group(0, 3)  # two episodes of two calls
    first, second = one.trajectories
    first = replace(
        first, turns=(replace(first.turns[0], notes=TurnNotes(old_keys=6)), first.turns[1])
    )
    marked = replace(one, trajectories=(first, second))
    assert old_key_metrics([marked]) == {"staleness/old_keys": 6 / 4}
    assert old_key_metrics([group(0, 3)]) == {}
