"""Groups of episodes as bytes."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ajet.core.buffer.codec import MAGIC, decode, encode
from ajet.core.errors import DataError
from ajet.core.task.task import Task
from ajet.core.trajectory.trajectory import Group
from tests.core.buffer.group_makers import group, groups, turn


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(st.lists(groups, max_size=2))
def test_what_was_encoded_comes_back_as_it_was(made):
    assert decode(encode(made)) == made


def test_a_prompt_that_continues_the_turn_before_is_not_stored_again():
    def size(num_turns):
        prompt, turns = list(range(1000)), []
        for number in range(num_turns):
            turns.append(turn(prompt, [number]))
            prompt = [*prompt, number, 7]
        one = group(0)
        from dataclasses import replace

        return len(
            encode([replace(one, trajectories=(replace(one.trajectories[0], turns=tuple(turns)),))])
        )

    assert size(40) < size(1) + 40 * 100  # 8000 bytes of ids each, otherwise


def test_a_reward_of_numpy_becomes_a_number():
    from dataclasses import replace

    changed = replace(group(0).trajectories[0], reward=np.float32(0.25))
    (back,) = decode(encode([Group("g-0", (changed,))]))
    assert back.trajectories[0].reward == 0.25


def test_a_task_that_holds_objects_comes_back_as_plain_data():
    task = Task("t", "q", metadata={"when": (1, 2), "self": object})
    (back,) = decode(encode([Group("g-0", group(0).trajectories, task)]))
    assert back.task.metadata == {"when": [1, 2], "self": "<class 'object'>"}


@pytest.mark.parametrize("content", [b"", b"other", MAGIC, MAGIC + b"12345678rest"])
def test_damaged_bytes_are_a_data_error_and_nothing_is_executed(content):
    with pytest.raises(DataError):
        decode(content)
