"""Groups of episodes as bytes."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ajet.core.buffer.codec import MAGIC, decode, encode
from ajet.core.errors import DataError
from ajet.core.trajectory.trajectory import Group
from tests.core.buffer.group_makers import group, groups, turn


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
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


def test_numbers_of_numpy_become_numbers_and_what_json_does_not_know_its_repr():
    one = group(0)
    member = one.trajectories[0]
    from dataclasses import replace

    odd = turn([1], [2], notes={"a": np.float32(0.5), "b": np.arange(2), "c": object, "d": (1, 2)})
    changed = replace(member, turns=(odd,), reward=np.float32(0.25))
    (back,) = decode(encode([Group("g-0", (changed,))]))
    assert back.trajectories[0].reward == 0.25
    notes = back.trajectories[0].turns[0].notes
    assert (notes["a"], notes["b"], notes["d"]) == (0.5, [0, 1], [1, 2])
    assert notes["c"] == "<class 'object'>"


def test_keys_that_json_does_not_know_and_cycles_are_kept_as_text():
    from dataclasses import replace

    cycle = {}
    cycle["self"] = cycle
    one = group(0)
    odd = replace(one.trajectories[0], turns=(turn([1], [2], notes={(1, 2): 3, "c": cycle}),))
    (back,) = decode(encode([Group("g-0", (odd,))]))
    notes = back.trajectories[0].turns[0].notes
    assert notes["(1, 2)"] == 3 and isinstance(notes["c"]["self"], str)


@pytest.mark.parametrize(
    ("value", "back"),
    [(10**30, 10**30), ("\ud800", "\ud800"), ({1}, "{1}"), (b"a", "b'a'"), ({1: 2}, {"1": 2})],
)
def test_values_that_msgpack_writes_otherwise_come_back_as_json_has_them(value, back):
    from dataclasses import replace

    odd = turn([1], [2], notes={"value": value})
    member = replace(group(0).trajectories[0], turns=(odd,), error="\udc80")
    ((came_back,),) = (each.trajectories for each in decode(encode([Group("g-0", (member,))])))
    assert (came_back.turns[0].notes, came_back.error) == ({"value": back}, "\udc80")


@pytest.mark.parametrize("content", [b"", b"other", MAGIC, MAGIC + b"12345678rest"])
def test_damaged_bytes_are_a_data_error_and_nothing_is_executed(content):
    with pytest.raises(DataError):
        decode(content)
