"""Hand-made groups, so that every figure can be worked out on paper."""

from dataclasses import replace

import numpy as np

from ajet.core.rollout.batch import StepGroups
from ajet.core.trajectory.samples import to_samples
from ajet.core.trajectory.trajectory import EpisodeStatus, Selection, SelectionName
from ajet.core.trajectory.turn import GIVEN, SUMMARY
from tests.core.record.record_fixtures import episode, group_of, metrics_of_step


def metrics_of(*groups):
    advantages = {
        t.episode_id: [np.ones(len(turn.completion.token_ids), np.float32) for turn in t.turns]
        for group in groups
        for t in group.valid
    }
    rollout = StepGroups(list(groups), [], seconds=2.0)
    return metrics_of_step(rollout, to_samples(groups, advantages), {"update/loss": 0.5})


def test_a_step_in_numbers():
    groups = (
        group_of(episode(member=0, reward=1.0), episode(member=1, reward=0.0)),
        group_of(episode(group=1, member=0), episode(group=1, member=1)),
    )
    metrics = metrics_of(*groups)
    assert metrics["reward/mean"] == 0.75
    assert metrics["reward/success"] == 0.75
    assert metrics["episodes/ok"] == metrics["episodes/total"] == 4
    assert metrics["tokens/sampled"] == metrics["tokens/trained"] == 4 * 5
    assert metrics["timelines/per_episode"] == 1 and metrics["timelines/merge_ratio"] == 2
    assert metrics["rollout/episodes_per_s"] == 2 and metrics["rollout/tokens_per_s"] == 10
    assert metrics["update/loss"] == 0.5


def test_episodes_that_nobody_judged_have_neither_reward_nor_success_and_are_trained():
    metrics = metrics_of(group_of(episode(member=0, reward=None), episode(member=1, reward=None)))
    assert not [name for name in metrics if name.startswith("reward/")]
    assert metrics["tokens/trained"] == metrics["tokens/sampled"] == 2 * 5
    assert metrics["groups/trained"] == 1 and metrics["groups/with_signal"] == 0


def test_greedy_episodes_count_in_the_speed_of_the_rollout_and_nowhere_above():
    group, greedy = group_of(episode(reward=1.0)), group_of(episode(group=9, reward=0.0))
    metrics = metrics_of_step(StepGroups([group], [greedy], seconds=2.0), [], {})
    assert (metrics["rollout/episodes_per_s"], metrics["rollout/tokens_per_s"]) == (1, 5)
    assert metrics["episodes/total"] == metrics["reward/mean"] == 1
    assert (metrics["baseline/episodes"], metrics["baseline/reward"]) == (1, 0)


def test_every_sampled_token_that_is_not_trained_has_a_reason():
    failed = episode(
        member=1, reward=None, status=EpisodeStatus.TIMEOUT, error="the deadline passed"
    )
    by_another = episode(member=2)
    first, second = by_another.turns
    by_another = replace(by_another, turns=(replace(first, trainable=False), second))
    metrics = metrics_of(group_of(episode(member=0), failed, by_another))
    assert metrics["tokens/sampled"] == 15
    assert metrics["tokens/trained"] == 5 + 2
    assert metrics["tokens/untrained_failed_episode"] == 5
    assert metrics["tokens/untrained_other_agent"] == 3


def test_an_episode_counts_as_what_it_was_before_the_policy_made_the_best_of_it():
    as_zero = replace(
        episode(member=1, reward=0.0, status=EpisodeStatus.AGENT_ERROR),
        selection=Selection(SelectionName.ZERO, "it counts as reward 0"),
    )
    metrics = metrics_of(group_of(episode(member=0), as_zero))
    assert metrics["episodes/agent_error"] == 1 and metrics["episodes/truncated"] == 0


def test_a_failed_attempt_that_was_retried_is_counted_with_its_tokens():
    failed = episode(member=1, reward=None, status=EpisodeStatus.TIMEOUT)
    again = replace(episode(member=1), earlier_attempts=(failed,))
    metrics = metrics_of(group_of(episode(member=0), again))
    assert metrics["episodes/ok"] == 2 and metrics["episodes/timeout"] == 0
    assert metrics["episodes/retried"] == metrics["episodes/retried_timeout"] == 1
    assert metrics["tokens/sampled"] == 15 and metrics["tokens/trained"] == 10
    assert metrics["tokens/untrained_retried"] == 5


def test_summaries_of_compacted_conversations_are_counted():
    whole = episode()
    first, second = whole.turns
    long = replace(first, notes={SUMMARY: True})
    empty = replace(second, notes={SUMMARY: True}, reply={"role": "assistant", "content": " "})
    empty = replace(empty, completion=replace(empty.completion, finish_reason="length"))
    compacted = replace(whole, turns=(long, empty))
    metrics = metrics_of(group_of(compacted, episode(member=1)))
    lengths = [len(turn.completion.token_ids) for turn in (long, empty)]
    assert metrics["compaction/episodes"] == 0.5
    assert metrics["compaction/summaries"] == 2
    assert metrics["compaction/summary_tokens"] == sum(lengths) / 2
    assert metrics["compaction/cut"] == metrics["compaction/empty"] == 1
    assert "compaction/summaries" not in metrics_of(group_of(whole))


def test_malformed_replies_and_drift_are_in_the_step():
    whole = episode()
    first, second = whole.turns
    bad = replace(first, notes={"malformed": {"nonsense": "U+FFFD 2x", "non_ascii": "é"}})
    other = replace(second, notes={"drift_checked": True, "drift": 11})
    metrics = metrics_of(
        group_of(replace(whole, turns=(bad, other)), replace(episode(member=1), turns=(bad,)))
    )
    assert metrics["episodes/malformed"] == 2
    assert metrics["turns/malformed_nonsense"] == metrics["turns/malformed_non_ascii"] == 2
    assert metrics["drift/checked"] == metrics["drift/rate"] == 1
    assert metrics["drift/first_position_min"] == metrics["drift/first_position_median"] == 11


def test_greedy_baselines_have_figures_of_their_own():
    members, greedy = group_of(episode(reward=1.0)), group_of(episode(group=1, reward=0.25))
    failed = group_of(episode(group=2, reward=None, status=EpisodeStatus.TIMEOUT))
    metrics = metrics_of_step(StepGroups([members], [greedy, failed], seconds=1.0), [], {})
    assert metrics["reward/mean"] == metrics["episodes/total"] == 1
    assert metrics["baseline/episodes"] == 2
    assert (metrics["baseline/valid"], metrics["baseline/reward"]) == (1, 0.25)


def test_what_a_selection_left_out_is_in_the_mean_reward_all_the_same():
    aside = group_of(episode(group=1, reward=0.0)).leave_out(
        SelectionName.DYNAMIC_SAMPLING, "all equal"
    )
    metrics = metrics_of(group_of(episode(member=0, reward=1.0)), aside)
    assert metrics["reward/mean"] == 0.5
    assert (metrics["groups/total"], metrics["groups/trained"]) == (2, 1)
    assert metrics["tokens/untrained_dynamic_sampling"] == 5
    assert metrics["selection/dynamic_sampling/reward_bias"] == 1


def test_given_replies_have_no_reward_nor_has_a_row_that_was_left_out_beside_them():
    given = tuple(replace(turn, notes={GIVEN: True}) for turn in episode().turns)
    too_long = group_of(episode(group=1, reward=0.0, turns=())).leave_out(
        SelectionName.OVERLONG, "a limit"
    )
    metrics = metrics_of(group_of(episode(turns=given)), too_long)
    assert "reward/mean" not in metrics and "reward/success" not in metrics
