"""The figures of two evaluations, by hand."""

from math import sqrt

import pytest

from ajet.core.record.evaluation import Z_95, mean_of_few, mean_over_tasks
from ajet.read.comparison import PlayedTask, compare


def played(*success, tag=None, reward=None):
    rewards = [float(each) for each in success] if reward is None else reward
    answers = [f"{'right' if each else 'wrong'} {n}" for n, each in enumerate(success)]
    return PlayedTask(list(map(bool, success)), rewards, ["ok"] * len(success), "?", tag, answers)


A = {
    "t1": played(1, 0, 0, 0, tag="easy"),
    "t2": played(1, 1, 1, 0, tag="easy"),
    "t3": played(0, 0, 0, 0, tag="hard"),
    "only a": played(1, 1, 1, 1),
}
B = {
    "t3": played(0, 0, 0, 0, tag="hard"),
    "t2": played(0, 1, 1, 0, tag="easy"),
    "t1": played(1, 1, 1, 1, tag="easy"),
    "only b": played(0, 0, 0, 0),
}


def test_only_tasks_of_both_count_and_the_difference_is_bs_minus_as():
    found = compare(A, B)
    assert (found.num_tasks, found.num_compared) == ((4, 4), 3)
    assert found.success.a.value == pytest.approx(1 / 3)
    assert found.success.b.value == pytest.approx(1 / 2)
    # differences 3/4, -1/4, 0 and two more tasks of variance 1/4 each: n* = 5, mean 1/10
    difference = found.success.difference
    assert difference.value == pytest.approx(1 / 6)
    half = Z_95 * sqrt(((9 / 16 + 1 / 16 + 1 / 4) / 5 - 1 / 100) / 5)
    assert (difference.low, difference.high) == pytest.approx((0.1 - half, 0.1 + half))
    back = compare(B, A).success.difference
    assert (back.value, back.low) == pytest.approx((-difference.value, -difference.high))


def test_tasks_that_changed_are_named_those_that_changed_most_first():
    found = compare(A, B)
    assert (found.rose, found.fell, found.num_same) == (["t1"], ["t2"], 1)
    other = compare({f"t{n}": played(0, 0, 0) for n in range(3)}, {
        "t0": played(1, 0, 0), "t1": played(1, 1, 1), "t2": played(1, 1, 0),
    })  # fmt: skip
    assert other.rose == ["t1", "t2", "t0"]


def test_pass_at_k_is_compared_for_1_2_4_up_to_what_both_have_played():
    found = compare(A, B)
    assert list(found.pass_at_k) == [1, 2, 4]
    # A: t1 1 - C(3,2)/C(4,2) = 1/2, t2 1, t3 0; B: t1 1, t2 1 - C(2,2)/C(4,2) = 5/6, t3 0
    two = found.pass_at_k[2]
    assert (two.a.value, two.b.value) == pytest.approx((1.5 / 3, (1 + 5 / 6) / 3))
    assert two.difference.value == pytest.approx((1 / 2 - 1 / 6) / 3)
    four = found.pass_at_k[4]
    assert (four.a.value, four.b.value, four.difference.value) == pytest.approx((2 / 3, 2 / 3, 0))
    # of 4 episodes 4/4 independent trials of pass@4: as wide as with one episode a task
    once = compare(*({t: played(any(p.success)) for t, p in s.items()} for s in (A, B)))
    assert four.difference == once.success.difference
    assert list(compare({"t": played(1, 0, 0)}, {"t": played(1, 0)}).pass_at_k) == [1, 2]


def test_rewards_have_students_t_and_a_failed_episode_has_reward_0():
    a = {name: played(0, reward=[reward]) for name, reward in (("x", 2.0), ("y", None), ("z", 1.0))}
    b = {name: played(0, reward=[reward]) for name, reward in (("x", 3.0), ("y", 2.0), ("z", 4.0))}
    found = compare(a, b).reward
    assert (found.a.value, found.b.value, found.difference.value) == (1.0, 3.0, 2.0)
    half = 4.303 / sqrt(3)  # two degrees of freedom, deviation 1
    assert found.difference.high == pytest.approx(2 + half)


def test_students_t_is_wider_than_the_normal_interval_and_meets_it_for_many():
    few, many = [0.0, 1.0, 1.0], [0.0, 1.0] * 200
    assert mean_of_few(few).high > mean_over_tasks(few).high
    assert mean_of_few(many).high == pytest.approx(mean_over_tasks(many).high, rel=1e-3)
    assert mean_of_few([1.0]) == mean_over_tasks([1.0])


def test_each_tag_has_its_own_figures_over_its_tasks():
    found = compare(A, B).by_tag
    assert list(found) == ["easy", "hard"]
    assert (found["easy"].num_tasks, found["easy"].difference.value) == (2, pytest.approx(1 / 4))
    assert found["hard"].a.value == found["hard"].b.value == 0


def test_an_answer_of_the_wanted_kind_is_taken_and_any_where_there_is_none():
    assert A["t1"].answer(of_success=False) == "wrong 1"
    assert A["t1"].answer(of_success=True) == "right 0"
    assert B["t1"].answer(of_success=False) == "right 0"
    assert PlayedTask([True], [1.0], ["ok"]).answer(of_success=True) is None


def test_runs_that_cannot_be_compared_are_refused():
    with pytest.raises(ValueError, match="no task in common"):
        compare({"a": played(1)}, {"b": played(1)})
    with pytest.raises(ValueError, match="no episode"):
        played()
