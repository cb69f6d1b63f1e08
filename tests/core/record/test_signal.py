from dataclasses import replace

import numpy as np
import pytest

from ajet.core.record.signal import equal_outcomes, num_with_signal, why_no_signal
from ajet.core.rollout.batch import StepGroups
from ajet.core.trajectory.limits import Limit, Truncation
from ajet.core.trajectory.trajectory import EpisodeStatus
from tests.core.record.record_fixtures import episode, group_of, metrics_of_step, sample_of


def group(*rewards, number=0, **kwargs):
    members = [episode(group=number, member=m, reward=r, **kwargs) for m, r in enumerate(rewards)]
    return group_of(*members)


def samples(groups, advantage=0.0):
    made = [sample_of(t) for g in groups for t in g.valid]
    return [replace(s, advantages=np.where(s.loss_mask, advantage, 0.0)) for s in made]


def answering(trajectory, text, breakdown=None):
    """The trajectory with another last reply, judged by the judge."""
    first, last = trajectory.turns
    turns = (first, replace(last, reply={"role": "assistant", "content": text}))
    return replace(trajectory, turns=turns, reward_breakdown={"judge": trajectory.reward})


def failed(member, error, status=EpisodeStatus.AGENT_ERROR):
    return episode(member=member, reward=None, status=status, error=error)


def test_groups_with_an_advantage_have_signal_and_others_none():
    groups = [group(1.0, 0.0), group(1.0, 1.0, number=1)]
    made = [*samples(groups[:1], 0.5), *samples(groups[1:], 1e-9)]
    assert num_with_signal(groups, made) == 1
    assert why_no_signal(groups, made, "grpo") is None
    metrics = metrics_of_step(StepGroups(groups, [], 1.0), made, {})
    assert metrics["groups/with_advantage"] == 1.0 and metrics["groups/total"] == 2.0


def test_equal_rewards_are_no_signal_even_where_a_critic_gives_advantages():
    groups = [group(0.0, 0.0), group(0.0, 0.0, number=1)]
    assert num_with_signal(groups, samples(groups, 0.5)) == 0
    assert why_no_signal(groups, samples(groups, 0.5), "gae") == (
        "all 4 rewards are 0: too hard, or the right answer is not recognised"
    )


def test_rewards_of_single_turns_are_signal_too():
    one, two = group(0.0, 0.0).trajectories
    first, last = one.turns
    groups = [group_of(replace(one, turns=(first, replace(last, reward=1.0))), two)]
    assert num_with_signal(groups, samples(groups, 0.5)) == 1


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ((1.0, 1.0), "all 2 rewards are 1: too easy, or any answer is taken"),
        ((0.5, 0.5), "all 2 rewards are 0.5"),
        ((0.0, 0.0), "all 2 rewards are 0: too hard, or the right answer is not recognised"),
    ],
)
def test_the_reason_says_which_reward_all_have(rewards, reason):
    groups = [group(*rewards)]
    assert why_no_signal(groups, samples(groups), "grpo") == reason


def test_a_judge_that_gives_the_same_to_different_answers_is_named():
    members = group(0.5, 0.5, 0.5).trajectories
    different = [answering(t, text) for t, text in zip(members, ("a", "b", "b"), strict=True)]
    assert why_no_signal([group_of(*different)], [], "grpo") == (
        "all 3 rewards are 0.5; the judge gives the same to 2 different answers"
    )


def test_all_failed_says_the_most_frequent_error():
    members = [failed(m, e) for m, e in enumerate(["no key", "no move", "no move"])]
    assert why_no_signal([group_of(*members)], [], "grpo") == (
        "all 3 episodes failed (3 agent_error); the most frequent error, 2 times: no move"
    )


def test_all_truncated_says_by_which_limit():
    cut = [
        episode(member=m, reward=0.0, truncation=Truncation(Limit.MAX_STEPS, "its 2 calls"))
        for m in (0, 1)
    ]
    assert why_no_signal([group_of(*cut)], [], "grpo") == (
        "all 2 episodes were truncated (2 by ajet.rollout.multi_turn.max_steps); "
        "their 2 rewards are 0"
    )


def test_a_step_that_is_masked_whole_names_the_mask_and_not_the_estimator():
    reason = "a limit cut it (overlong.mask_truncated)"
    cut = {"status": EpisodeStatus.TRUNCATED, "error": "1 model calls are the limit"}
    masked = [
        episode(member=m, reward=r, **cut).leave_out("overlong", reason)
        for m, r in enumerate([1.0, 0.0, 0.0])
    ]
    told = f"all 3 episodes are left out of training: {reason}"
    assert why_no_signal([group_of(*masked)], [], "grpo") == told
    also_failed = group_of(*masked, failed(3, "ValueError: no key"))
    assert why_no_signal([also_failed], [], "grpo") == f"{told}; the other 1 failed"
    kept = [group_of(*masked, episode(member=3, reward=0.5))]
    assert "left out" not in why_no_signal(kept, samples(kept), "grpo")


def test_a_reply_cut_by_its_own_limit_counts_as_truncated():
    one, two = group(0.0, 0.0).trajectories
    first, last = one.turns
    cut = (first, replace(last, completion=replace(last.completion, finish_reason="length")))
    groups = [group_of(replace(one, turns=cut), replace(two, turns=cut))]
    reason = why_no_signal(groups, [], "grpo") or ""
    assert "2 by ajet.rollout.max_response_length_in_one_turn" in reason
    metrics = metrics_of_step(StepGroups(groups, [], 1.0), [], {})
    assert metrics["episodes/cut"] == 2.0
    assert metrics["episodes/cut_max_response_length_in_one_turn"] == 2.0


def test_a_member_that_was_stopped_with_a_cut_reply_is_no_cut_episode():
    first, last = episode().turns
    cut = (first, replace(last, completion=replace(last.completion, finish_reason="length")))
    stopped = episode(member=1, reward=None, status=EpisodeStatus.ABORTED, turns=cut)
    groups = [group_of(episode(), stopped)]
    metrics = metrics_of_step(StepGroups(groups, [], 1.0), [], {})
    assert metrics["episodes/cut"] == 0.0 and metrics["episodes/aborted"] == 1.0


def test_rewards_that_differ_only_between_groups_are_said_to():
    groups = [group(1.0, 1.0), group(0.0, 0.0, number=1), group(0.0, 0.0, number=2)]
    assert why_no_signal(groups, samples(groups), "grpo") == (
        "the rewards are equal within each of the 3 groups (2 all 0, 1 all 1)"
    )


def test_groups_of_one_have_nothing_to_compare():
    groups = [group(1.0), group(0.0, number=1)]
    assert "ajet.rollout.num_repeat" in (why_no_signal(groups, samples(groups), "grpo") or "")


def test_episodes_that_failed_beside_equal_rewards_are_counted():
    groups = [group_of(*group(0.0, 0.0).trajectories, failed(2, "no key"))]
    assert (why_no_signal(groups, samples(groups), "grpo") or "").startswith(
        "all 2 rewards are 0; the other 1 failed"
    )


def test_episodes_that_came_out_differently_have_no_common_outcome():
    assert equal_outcomes(group(0.0, 1.0).trajectories) is None
