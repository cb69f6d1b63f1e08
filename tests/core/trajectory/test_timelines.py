import time
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.core.inference.endpoint import Completion
from ajet.core.trajectory.sample import TurnSpan
from ajet.core.trajectory.samples import timelines
from ajet.core.trajectory.turn import Turn


def turn(prompt, sampled, trainable=True, version=0):
    """Logprobs tell the tokens apart: token x of this turn has -x - 0.5 * version."""
    logprobs = tuple(-float(token) - 0.5 * version for token in sampled)
    completion = Completion(tuple(prompt), tuple(sampled), logprobs, "stop", version)
    return Turn(completion, [], None, {}, trainable=trainable)


def flat(timeline):
    return timeline.token_ids.tolist(), timeline.loss_mask.astype(int).tolist()


def test_a_fork_trains_the_shared_turn_once():
    """The example of the module's docstring, with numbers."""
    first, left, right = turn([9], [1, 2]), turn([9, 1, 2, 7], [3, 4]), turn([9, 1, 2, 8], [5])
    one, two = timelines([first, left, right])
    assert flat(one) == ([9, 1, 2, 7, 3, 4], [0, 1, 1, 0, 1, 1])
    assert one.logprobs.tolist() == [0, -1, -2, 0, -3, -4]
    assert one.spans == (TurnSpan(1, 3, 0), TurnSpan(4, 6, 1))
    assert flat(two) == ([9, 1, 2, 8, 5], [0, 0, 0, 0, 1])
    assert two.logprobs.tolist() == [0, 0, 0, 0, -5]
    assert two.spans == (TurnSpan(4, 5, 2),)


def test_a_token_has_the_experts_with_which_it_was_first_computed():
    """One layer, one expert a token. The second turn computed the prompt again, with others."""
    first, second = turn([9, 9], [1]), turn([9, 9, 1, 7], [2])
    first = replace(first, completion=replace(first.completion, routes=experts(1, 2)))
    second = replace(second, completion=replace(second.completion, routes=experts(5, 6, 7, 8)))
    (only,) = timelines([first, second])
    assert only.routes[:, 0, 0].tolist() == [1, 2, 7, 8, 255]  # nothing follows the last token


def experts(*numbers):
    return np.array(numbers, np.uint8).reshape(-1, 1, 1)


def test_the_experts_of_tokens_that_a_stop_string_cut_off_are_not_those_of_later_ones():
    """The engine fed two tokens more than the reply has; the next prompt has others there."""
    first, second = turn([9], [1]), turn([9, 1, 7], [2])
    first = replace(first, completion=replace(first.completion, routes=experts(3, 4, 90, 91)))
    second = replace(second, completion=replace(second.completion, routes=experts(3, 4, 5)))
    (only,) = timelines([first, second])
    assert only.routes[:, 0, 0].tolist() == [3, 4, 5, 255]
    (alone,) = timelines([first])
    assert alone.routes[:, 0, 0].tolist() == [3, 4]


def test_a_turn_whose_experts_are_not_known_leaves_those_of_others():
    first, second = turn([9], [1]), turn([9, 1, 7], [2])
    first = replace(first, completion=replace(first.completion, routes=experts(3)))
    (only,) = timelines([first, second])
    assert only.routes[:, 0, 0].tolist() == [3, 255, 255, 255]


def test_a_conversation_is_one_timeline():
    turns = [turn([9], [1]), turn([9, 1, 7], [2]), turn([9, 1, 7, 2, 7], [3])]
    (only,) = timelines(turns)
    assert flat(only) == ([9, 1, 7, 2, 7, 3], [0, 1, 0, 1, 0, 1])


def test_tool_tokens_and_other_agents_are_never_trained():
    turns = [turn([9], [1]), turn([9, 1, 7], [2], trainable=False), turn([9, 1, 7, 2, 7], [3])]
    (only,) = timelines(turns)
    assert flat(only) == ([9, 1, 7, 2, 7, 3], [0, 1, 0, 0, 0, 1])
    assert only.logprobs.tolist() == [0, -1, 0, 0, 0, -3]


def test_a_timeline_ends_with_its_last_trained_token():
    (only,) = timelines([turn([9], [1]), turn([9, 1, 7], [2], trainable=False)])
    assert flat(only) == ([9, 1], [0, 1])


def test_nothing_to_train_makes_no_timeline():
    assert timelines([]) == []
    assert timelines([turn([9], [1], trainable=False), turn([9], [])]) == []


def test_an_empty_completion_does_not_disturb_the_rest():
    (only,) = timelines([turn([9], [1]), turn([9, 1, 7], []), turn([9, 1, 7, 8], [2])])
    assert flat(only) == ([9, 1, 7, 8, 2], [0, 1, 0, 0, 1])


def test_equal_samples_of_one_prompt_are_each_trained():
    turns = [turn([9], [1, 2]), turn([9], [1, 2], version=1)]
    assert [flat(t) for t in timelines(turns)] == [([9, 1, 2], [0, 1, 1])] * 2
    assert [t.logprobs.tolist() for t in timelines(turns)] == [[0, -1, -2], [0, -1.5, -2.5]]
    assert [t.spans[0].turn_index for t in timelines(turns)] == [0, 1]


def test_the_first_of_equal_samples_is_the_one_that_is_continued():
    turns = [turn([9], [1]), turn([9], [1], version=1), turn([9, 1, 7], [2])]
    one, two = timelines(turns)
    assert (flat(one), one.spans[0].turn_index) == (([9, 1, 7, 2], [0, 1, 0, 1]), 0)
    assert (flat(two), two.spans[0].turn_index) == (([9, 1], [0, 1]), 1)


def test_a_sample_that_another_one_goes_beyond_has_its_own_timeline():
    """Cut short at two tokens, then tried again with room for three: the same positions."""
    turns = [turn([9], [1, 2]), turn([9], [1, 2, 3])]
    assert [flat(t) for t in timelines(turns)] == [
        ([9, 1, 2, 3], [0, 1, 1, 1]),
        ([9, 1, 2], [0, 1, 1]),
    ]


def test_a_prompt_that_ends_within_an_earlier_sample_does_not_train_it_twice():
    turns = [turn([9], [1, 2]), turn([9, 1], [2, 3])]
    assert [flat(t) for t in timelines(turns)] == [
        ([9, 1, 2, 3], [0, 0, 1, 1]),
        ([9, 1, 2], [0, 1, 1]),
    ]


def test_policy_versions_are_those_of_the_trained_turns():
    turns = [turn([9], [1], version=3), turn([9, 1, 7], [2], version=5)]
    turns.append(turn([9, 1, 7, 2, 7], [3], trainable=False, version=9))
    (only,) = timelines(turns)
    assert (only.min_policy_version, only.max_policy_version) == (3, 5)


IDS = st.lists(st.integers(0, 2), max_size=5)


@settings(max_examples=300)
@given(st.lists(st.tuples(IDS, IDS, st.booleans()), max_size=10))
def test_each_sampled_token_is_trained_once_in_its_own_context(specs):
    """Three ids and short lists, so that turns collide, contain and repeat each other."""
    turns = [turn([9, *p], s, trainable, index) for index, (p, s, trainable) in enumerate(specs)]
    check_promise(turns)


def check_promise(turns):
    paths = timelines(turns)
    trained = {span.turn_index: (path, span) for path in paths for span in path.spans}
    assert sum(len(path.spans) for path in paths) == len(trained), "a turn is trained twice"
    for index, made in enumerate(turns):
        done = made.completion
        if not (made.trainable and done.token_ids):
            assert index not in trained
            continue
        path, span = trained[index]
        assert (*done.prompt_ids, *done.token_ids) == tuple(path.token_ids[: span.stop].tolist())
        assert span.start == len(done.prompt_ids)
        expected = np.array(done.logprobs, dtype=np.float32)
        assert (path.logprobs[span.start : span.stop] == expected).all()
    for path in paths:
        mask = np.zeros(len(path.token_ids), dtype=int)
        for span in path.spans:
            mask[span.start : span.stop] += 1
        assert (mask == path.loss_mask).all(), "spans overlap, or the mask is not theirs"
        assert (path.logprobs[mask == 0] == 0).all()
    num_sampled = sum(len(t.completion.token_ids) for t in turns if t.trainable)
    assert sum(int(path.loss_mask.sum()) for path in paths) == num_sampled


def test_thirty_turns_of_thirty_thousand_tokens_take_milliseconds():
    turns, prompt = [], tuple(range(1_000))
    for index in range(30):
        sampled = tuple(range(2_000 + index, 2_900 + index))
        turns.append(turn(prompt, sampled))
        prompt = (*prompt, *sampled, *range(50))
    started = time.process_time()
    (only,) = timelines(turns)
    assert time.process_time() - started < 0.1  # 7 ms on an idle core
    assert (len(only.token_ids), only.num_trained) == (1_000 + 30 * 950 - 50, 27_000)
