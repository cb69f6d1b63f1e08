"""The order of tasks: seeded, whole, and resumed exactly."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.core.errors import CheckpointError
from ajet.core.task.cursor import DataCursor


def test_without_shuffling_batches_go_round():
    cursor = DataCursor(5, 2, seed=0, shuffle=False)
    assert [cursor.next_batch() for _ in range(4)] == [[0, 1], [2, 3], [4, 0], [1, 2]]
    assert cursor.epoch == 1


def test_the_order_is_the_seeds_and_changes_with_the_epoch():
    epochs = [DataCursor(100, 100, seed=seed) for seed in (1, 1, 2)]
    first = [cursor.next_batch() for cursor in epochs]
    assert first[0] == first[1] != first[2]
    assert epochs[0].next_batch() != first[0]
    assert sorted(first[0]) == list(range(100))


@given(
    num_tasks=st.integers(1, 30),
    batch=st.integers(1, 70),
    taken=st.integers(0, 8),
    seed=st.integers(0, 3),
)
def test_a_resumed_cursor_goes_on_in_the_same_order(num_tasks, batch, taken, seed):
    whole = DataCursor(num_tasks, batch, seed=seed)
    for _ in range(taken):
        whole.next_batch()
    resumed = DataCursor(num_tasks, batch, seed=seed)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert [resumed.next_batch() for _ in range(3)] == [whole.next_batch() for _ in range(3)]


@given(num_tasks=st.integers(1, 20), batch=st.integers(1, 50), epochs=st.integers(1, 5))
def test_every_task_is_taken_once_an_epoch(num_tasks, batch, epochs):
    cursor = DataCursor(num_tasks, batch, seed=0)
    taken = [i for _ in range(cursor.total_steps(epochs)) for i in cursor.next_batch()]
    for epoch in range(epochs):
        one = taken[epoch * num_tasks : (epoch + 1) * num_tasks]
        assert sorted(one) == list(range(num_tasks))


def test_resuming_on_other_data_or_another_seed_is_refused():
    state = DataCursor(5, 2, seed=0).state_dict()
    with pytest.raises(CheckpointError, match="num_tasks=5, this run has 6"):
        DataCursor(6, 2, seed=0).load_state_dict(state)
    with pytest.raises(CheckpointError, match="seed=0, this run has 1"):
        DataCursor(5, 2, seed=1).load_state_dict(state)


def test_the_batch_size_may_change_on_resuming():
    small, large = DataCursor(9, 2, seed=0), DataCursor(9, 3, seed=0)
    order = [i for _ in range(4) for i in small.next_batch()]
    fresh = DataCursor(9, 2, seed=0)
    fresh.next_batch()
    large.load_state_dict(fresh.state_dict())
    assert large.next_batch() == order[2:5]
