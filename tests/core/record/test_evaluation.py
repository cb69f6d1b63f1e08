"""Figures of an evaluation, against numbers worked out by hand."""

import math
import random

import pytest

from ajet.core.record.evaluation import (
    evaluate,
    mean_over_tasks,
    paired_difference,
    pass_at_k,
    pass_hat_k,
    wilson,
)
from ajet.core.record.step_metrics import held_out_metrics
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, Trajectory


def group(name: str, successes: list[bool], **metadata: str) -> Group:
    task = Task(task_id=name, main_query="?", metadata=metadata)
    return Group(
        name,
        tuple(
            Trajectory(
                WorkflowTask(task, f"{name}-{i}", name, i, 0, "eval", 0),
                turns=(),
                outcome=EpisodeStatus.OK,
                reward=float(won),
                is_success=won,
            )
            for i, won in enumerate(successes)
        ),
    )


def test_wilson_interval_of_eight_in_ten():
    estimate = wilson(8, 10)
    assert estimate.value == 0.8
    assert estimate.low == pytest.approx(0.4902, abs=1e-4)
    assert estimate.high == pytest.approx(0.9433, abs=1e-4)


def test_a_paired_difference_of_ten_tasks_worked_out_by_hand():
    # 4 tasks that the first alone solves, 1 that the other alone solves, 5 alike. With two tasks
    # added: mean 3/12, variance (5 + 1)/12 - 1/16 = 7/16, half width 1.96 * sqrt(7/16 / 12).
    first = {str(n): [n < 4 or n >= 7] for n in range(10)}
    other = {str(n): [n == 4 or n >= 7] for n in range(10)}
    estimate = paired_difference(first, other)
    assert estimate.value == pytest.approx(0.3)
    assert (estimate.low, estimate.high) == pytest.approx((-0.12424, 0.62424), abs=1e-5)
    back = paired_difference(other, first)
    assert (back.low, back.high) == pytest.approx((-estimate.high, -estimate.low))


def test_a_paired_difference_is_over_the_tasks_that_both_have_and_always_has_a_width():
    alike = paired_difference({"a": [True], "b": [False], "c": [True]}, {"a": [True], "b": [False]})
    assert alike.value == 0.0
    # n* = 4, variance 1/4, half width 1.96 * sqrt(1/16); with four episodes a task half of it
    assert (alike.low, alike.high) == pytest.approx((-0.48999, 0.48999), abs=1e-5)
    more = paired_difference(
        {"a": [True] * 4, "b": [False] * 4}, {"a": [True] * 4, "b": [False] * 5}
    )
    assert (more.low, more.high) == pytest.approx((-0.24500, 0.24500), abs=1e-5)
    none = paired_difference({"a": [True]}, {"b": [True]})
    assert math.isnan(none.value) and (none.low, none.high) == (-1.0, 1.0)


@pytest.mark.parametrize(("num_tasks", "k"), [(20, 1), (100, 1), (30, 8)])
def test_the_interval_of_a_paired_difference_holds_the_truth_in_95_percent(num_tasks, k):
    draw = random.Random(f"{num_tasks} {k}")
    hits = 0
    for _ in range(1000):
        first, other = {}, {}
        for task in range(num_tasks):
            share = draw.random()  # of the other; the first solves every second task more often
            better = min(1.0, share + 0.2) if task % 2 else share
            first[str(task)] = [draw.random() < better for _ in range(k)]
            other[str(task)] = [draw.random() < share for _ in range(k)]
        estimate = paired_difference(first, other)
        truth = 0.5 * (0.2 - 0.02)  # the part above 1 is cut: E[max(0, U - 0.8)] = 0.02
        hits += estimate.low <= truth <= estimate.high
    assert 0.93 <= hits / 1000 <= 0.995


def test_pass_at_k_is_the_share_of_subsets_with_a_success():
    # 4 episodes, 1 success: of the 6 pairs, 3 hold it.
    assert pass_at_k(4, 1, 1) == 0.25
    assert pass_at_k(4, 1, 2) == 0.5
    assert pass_at_k(4, 1, 4) == 1.0
    assert pass_at_k(4, 0, 4) == 0.0


def test_pass_hat_k_is_the_share_of_subsets_without_a_failure():
    # 3 of 4 succeeded: of the 6 pairs, the 3 without the failure
    assert pass_hat_k(4, 3, 1) == 0.75
    assert pass_hat_k(4, 3, 2) == 0.5
    assert pass_hat_k(4, 3, 4) == 0.0
    assert pass_hat_k(4, 4, 4) == 1.0


def test_pass_at_k_refuses_more_than_there_are():
    with pytest.raises(ValueError, match="pass@5"):
        pass_at_k(4, 1, 5)


def test_the_interval_counts_tasks_not_episodes():
    # Two tasks, one always won, one never: the four episodes are worth two independent ones.
    report = evaluate([group("a", [True, True]), group("b", [False, False])])
    assert report.success == wilson(1, 2) == report.pass_at_k[1] == report.pass_at_k[2]
    # Rewards are no shares: 1 and 0, so half = 1.96 * 0.7071 / sqrt(2).
    half = report.mean_at_k.high - 0.5
    assert half == pytest.approx(1.959964 * math.sqrt(0.5) / math.sqrt(2))
    assert mean_over_tasks([1.0, 0.0]) == report.mean_at_k


def test_episodes_that_agree_no_more_than_by_chance_count_each():
    # Both tasks won half the time: no variance between tasks, four trials.
    report = evaluate([group("a", [True, False]), group("b", [False, True])])
    assert report.success == wilson(2, 4)
    assert report.pass_at_k[2].value == 1.0


def test_success_of_every_episode_still_has_a_width():
    report = evaluate([group(name, [True] * 4) for name in "abcdefgh"])
    assert report.success == report.pass_at_k[4] == wilson(8, 8)
    assert report.success.low == pytest.approx(0.6756, abs=1e-4)


def test_a_failed_episode_counts_as_unsuccessful():
    good = group("a", [True])
    failed = Trajectory(
        good.trajectories[0].workflow_task, turns=(), outcome=EpisodeStatus.TIMEOUT, failure="late"
    )
    report = evaluate([good, Group("b", (failed,))])
    assert report.success.value == 0.5
    assert report.statuses == {"ok": 1, "timeout": 1}


def test_success_is_told_for_each_tag_where_tasks_have_one():
    groups = [
        group("a", [True, True], tag="Lake"),
        group("b", [False, True], tag="Lake"),
        group("c", [False, False], tag="Rooms"),
        group("d", [True, True]),
    ]
    report = evaluate(groups)
    assert {tag: each.value for tag, each in report.success_by_tag.items()} == {
        "Lake": 0.75,
        "Rooms": 0.0,
    }
    assert held_out_metrics(report)["held_out/success/Lake"] == 0.75
    assert evaluate(groups[3:]).success_by_tag == {}
