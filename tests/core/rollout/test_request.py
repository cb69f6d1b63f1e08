"""The episodes of a request: one plan for each member of each group."""

import pytest

from ajet import Task
from ajet.core.rollout.request import RolloutRequest


def test_each_task_has_a_group_of_the_number_that_is_given():
    tasks = [Task("a", "1"), Task("b", "2")]
    request = RolloutRequest(
        tasks, step=3, mode="train", num_repeat=1, redundancy=1, numbers=[4, 7]
    )
    plans = request.plans(0)
    assert [(plan.group_id, plan.rollout_index, plan.task_id) for plan in plans] == [
        ("000003-train-0004", 0, "a"),
        ("000003-train-0004", 1, "a"),
        ("000003-train-0007", 0, "b"),
        ("000003-train-0007", 1, "b"),
    ]


def test_numbers_for_other_tasks_than_there_are_make_no_plans():
    request = RolloutRequest([Task("a", "1")], step=3, mode="train", num_repeat=1, numbers=[0, 1])
    with pytest.raises(ValueError, match="zip"):
        request.plans(0)
