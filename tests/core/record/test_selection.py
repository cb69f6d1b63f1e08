"""What a selection does to the batch, worked out by hand."""

from dataclasses import replace

from ajet.core.record.selection import selection_metrics
from ajet.core.trajectory.trajectory import SelectionName
from tests.core.record.record_fixtures import episode, group_of


def test_selected_episodes_are_compared_with_those_left_out():
    short = episode(member=1, reward=0.0)
    short = replace(short, turns=short.turns[:1])  # 3 of its 5 sampled tokens
    group = group_of(
        episode(member=0, reward=1.0),
        short,
        episode(member=2, reward=0.5).leave_out(SelectionName.OVERLONG, "cut"),
    )
    metrics = selection_metrics([group], ["overlong", "redundancy"])
    assert metrics == {
        "selection/overlong/kept": 2,
        "selection/overlong/left_out": 1,
        "selection/overlong/reward_kept": 0.5,
        "selection/overlong/reward_left_out": 0.5,
        "selection/overlong/reward_bias": 0,
        "selection/overlong/tokens_kept": 4,
        "selection/overlong/tokens_left_out": 5,
        "selection/overlong/tokens_bias": -1,
        "selection/overlong/turns_kept": 1.5,
        "selection/overlong/turns_left_out": 2,
        "selection/overlong/turns_bias": -0.5,
        "selection/redundancy/kept": 3,
        "selection/redundancy/left_out": 0,
    }


def test_who_a_later_selection_left_out_was_kept_by_those_before_it():
    aside = group_of(episode(group=1, reward=0.0)).leave_out(
        SelectionName.DYNAMIC_SAMPLING, "all equal"
    )
    surplus = episode(member=1, reward=1.0).leave_out(SelectionName.REDUNDANCY, "enough")
    metrics = selection_metrics([group_of(episode(reward=1.0), surplus), aside], [])
    assert metrics["selection/redundancy/kept"] == 2
    assert metrics["selection/redundancy/reward_kept"] == 0.5
    assert metrics["selection/dynamic_sampling/kept"] == 1


def test_those_that_were_stopped_have_no_reward_to_compare():
    stopped = replace(episode(member=1, reward=None), turns=()).leave_out(
        SelectionName.REDUNDANCY, "enough"
    )
    metrics = selection_metrics([group_of(episode(member=0, reward=1.0), stopped)], [])
    assert metrics["selection/redundancy/turns_bias"] == 2
    assert "selection/redundancy/reward_bias" not in metrics


def test_a_run_that_selects_nobody_says_nothing():
    assert selection_metrics([group_of(episode())], []) == {}
