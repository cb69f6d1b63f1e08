"""Figures of an evaluation, against numbers worked out by hand."""

import math

import pytest

from ajet.core.record.evaluation import evaluate, mean_over_tasks, pass_at_k, wilson
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
                status=EpisodeStatus.OK,
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


def test_pass_at_k_is_the_share_of_subsets_with_a_success():
    # 4 episodes, 1 success: of the 6 pairs, 3 hold it.
    assert pass_at_k(4, 1, 1) == 0.25
    assert pass_at_k(4, 1, 2) == 0.5
    assert pass_at_k(4, 1, 4) == 1.0
    assert pass_at_k(4, 0, 4) == 0.0


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
        good.trajectories[0].workflow_task, turns=(), status=EpisodeStatus.TIMEOUT, error="late"
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
