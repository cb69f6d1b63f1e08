"""Groups of episodes as bytes."""

import base64
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ajet.core.buffer.codec import MAGIC, decode, encode
from ajet.core.errors import DataError
from ajet.core.task.task import Task
from ajet.core.trajectory.limits import Limit, Truncation
from ajet.core.trajectory.trajectory import Group, Selection, SelectionName
from tests.core.buffer.group_makers import group, groups, turn


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(st.lists(groups, max_size=2))
def test_a_group_is_decoded_as_it_was_encoded(made):
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


FORMAT_1 = base64.b64decode(
    "YWpldC1ncm91cHMtMQrHCgAAAAAAAHgB3ZbNbtswDMdfRdApA7zASbuL73uFXYpAYGzG0SJLqUQ1LYK8+/7Ox5IN"
    "K4KmaQPsZIsiKZE/kdLDWrcx5KWxja50qwstlBa6Wm+/O6lA2pH15jFzfIHaIwTWWzEdp0QtJ109TArN/snIy5Kh"
    "4YPBqLdjoYaE4HGzKfSUEjvroeKzc1gs0k+uJUS7dbLWqxAXMxdW5nQbH7YdXtoUGt4H/7UsseO/0hGDcyGLsb7h"
    "Z12VhU7CS12NEBtMEStisB6GiRk5LBGl5Oj3OUlCkvGvwwIqcLTMcgg+8ooiTEZDeLXJpFzXSOif02YamRZNWPk+"
    "hUhyjCEeVMR21rew6Gem3JI32dtnA0nZO63JOfxv4VB0lqMhEe6WspfOyDpuDGG4A+J4Jgbb3I03xa2JjM4SAYjL"
    "iEjMviYBtNfAlMNvbwajZc5qf65UTtwoK0mN1RaFGnQEOjhA6QtW/f/xjc/iG1+Kj6YhXh0eKYeSElVnATc1CE8c"
    "XfDtsENXNL9PzLXhoYccz+KxBPVheX37Qrw7S/LuUpKnwf+7Q26b2Rs7JO4gUTNcU2mOIlxZmVuvRiqpQR2yR01S"
    "UrsOrMr387x1n/xIPLbj/kZ4rUvuLo4r0fmMrjgp9Mm913fhfXzHyutjun3N3Z+tuftLaw6vNi9m95i4Ltgf5DJ/"
    "718plfLhU3huJr8ADPSuuQ=="
)
"""Members as releases of format 1 wrote them: ok; cut by `max_steps`; cut and left out; a timeout
that counts as reward 0, after another one; an error."""


def test_a_buffer_of_format_1_opens_and_its_truncations_have_an_unknown_limit():
    [group] = decode(FORMAT_1)
    whole, cut, left_out, zero, failed = group.trajectories
    used = "the episode used its 2 calls (max_steps)"
    assert (whole.outcome, whole.error, whole.selection) == ("ok", None, None)
    assert (cut.outcome, cut.truncation) == ("truncated", Truncation(Limit.UNKNOWN, used))
    assert cut.is_valid and cut.cut_by is Limit.UNKNOWN
    reason = "a limit cut it (overlong.mask_truncated)"
    assert (left_out.outcome, left_out.status) == ("truncated", "aborted")
    assert left_out.selection == Selection(SelectionName.OVERLONG, reason)
    assert (zero.outcome, zero.status, zero.is_valid) == ("timeout", "truncated", True)
    assert zero.error == "not finished within 1 s (counts as reward 0)"
    assert zero.earlier_attempts[0].failure == "not finished within 1 s"
    assert (failed.outcome, failed.failure) == ("agent_error", "ValueError: no")
    assert decode(encode([group])) == [group]


def test_the_experts_of_a_turn_are_kept():
    plain = group(0)
    routes = np.arange(3 * 2 * 2, dtype=np.uint16).reshape(3, 2, 2) * 100
    first, *rest = plain.trajectories[0].turns
    routed = replace(first, completion=replace(first.completion, routes=routes))
    member = replace(plain.trajectories[0], turns=(routed, *rest))
    (decoded,) = decode(encode([replace(plain, trajectories=(member, *plain.trajectories[1:]))]))
    kept = [turn.completion.routes for turn in decoded.trajectories[0].turns]
    assert (kept[0] == routes).all() and kept[0].dtype == np.uint16
    assert kept[1] is None
