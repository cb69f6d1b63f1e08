"""Counts of a step that can be worked out on paper, and their sum over steps."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from ajet.core.checkpoint.checkpoint import checked_state
from ajet.core.inference.endpoint import Completion
from ajet.core.record.timeline_counts import (
    ANOTHER_AGENT,
    NOT_RECORDED,
    SAMPLED_AGAIN,
    WENT_BACK,
    TimelineCounts,
)
from ajet.core.run.run_state import RunState
from ajet.core.trajectory.samples import to_samples
from ajet.core.trajectory.trajectory import EpisodeStatus, SelectionName
from ajet.core.trajectory.turn import Turn, TurnNotes
from tests.core.record.record_fixtures import episode, group_of


def state_of(content):
    return checked_state(RunState, content, Path("c"))


def turn(prompt, sampled, agent="default", trainable=True, **notes):
    completion = Completion(tuple(prompt), tuple(sampled), (-1.0,) * len(sampled), "stop", 0)
    return Turn(
        completion, [], None, {}, agent_name=agent, trainable=trainable, notes=TurnNotes(**notes)
    )


def counts_of(*groups, advantage=1.0):
    given = {
        t.episode_id: [np.full(len(m.completion.token_ids), advantage, np.float32) for m in t.turns]
        for group in groups
        for t in group.valid
    }
    return TimelineCounts.from_groups(groups, to_samples(groups, given))


def counts_of_turns(*turns):
    return counts_of(group_of(episode(turns=turns)))


def test_the_example_of_the_module():
    """Prompts of 2, 4 and 3 tokens, one token sampled after each."""
    counts = counts_of_turns(
        turn([1, 2], [3]), turn([1, 2, 3, 4], [5], continues=True), turn([7, 8, 9], [6])
    )
    assert (counts.episodes, counts.calls, counts.timelines) == (1, 3, 2)
    assert counts.merge_ratio == 1.5
    assert (counts.row_tokens, counts.timeline_tokens) == (3 + 5 + 4, 5 + 4)
    assert counts.token_ratio == 12 / 9
    assert counts.splits == {NOT_RECORDED: 1}
    assert (counts.sampled, counts.trained, counts.not_trained) == (3, 3, {})


def test_every_timeline_after_an_episodes_first_has_its_reason():
    counts = counts_of_turns(
        turn([1], [2]),
        turn([1], [3]),  # a retry
        turn([1, 2, 4], [5], continues=True),  # goes on from turn 0
        turn([1, 2, 6], [7], continues=True),  # so does this, though turn 2 has done so
        turn([8], [9], agent="critic"),
        turn([8, 8], [9], agent="critic"),  # an edited history
        turn([8, 7, 1], [9], agent="critic", reason="the template drops the thinking"),
    )
    assert counts.timelines == 6
    assert counts.splits == {
        SAMPLED_AGAIN: 1,
        WENT_BACK: 1,
        ANOTHER_AGENT: 1,
        NOT_RECORDED: 1,
        "the template drops the thinking": 1,
    }


def test_every_sampled_token_that_is_not_trained_has_its_reason():
    """Episodes of 3 + 2 sampled tokens each (see record_fixtures)."""
    first, second = episode().turns
    by_another = replace(episode(member=1), turns=(replace(first, trainable=False), second))
    late = episode(member=2, reward=None, status=EpisodeStatus.TIMEOUT)
    tried = replace(late, turns=(first, replace(second, trainable=False)))
    again = replace(episode(member=3), earlier_attempts=(tried,))
    sound = episode(group=1, member=0, reward=1.0)
    dropped = sound.leave_out(SelectionName.DROP_GROUP, "another member failed")
    broken = episode(group=1, member=1, reward=None, status=EpisodeStatus.JUDGE_ERROR)
    counts = counts_of(
        group_of(episode(member=0), by_another, late, again), group_of(dropped, broken)
    )
    assert counts.not_trained == {
        "other_agent": 3 + 2,
        "timeout": 5,
        "retried": 3,
        "dropped_group": 5,
        "judge_error": 5,
    }
    assert counts.trained == 5 + 2 + 5
    assert counts.sampled == counts.trained + sum(counts.not_trained.values())


def test_tokens_of_advantage_zero_are_counted_apart():
    assert counts_of(group_of(episode())).without_advantage == 0
    assert counts_of(group_of(episode()), advantage=0.0).without_advantage == 5


def test_drift_is_of_the_calls_that_were_checked():
    checked = {"drift_checked": True}
    counts = counts_of_turns(
        turn([1], [2]),
        turn([1, 2, 3], [4], **checked),
        turn([1, 2, 3, 4, 5], [6], **checked, drift=1),
        turn([1, 2, 3, 4, 5, 6, 7], [8], **checked, drift=1),
        turn([1, 2, 3, 4, 5, 6, 7, 8, 9], [1], **checked, drift=4),
    )
    assert counts.drift == {
        "checked": 4,
        "rate": 0.75,
        "first_position_min": 1,
        "first_position_median": 1,
    }
    assert counts_of_turns(turn([1], [2])).drift == {"checked": 0}


def test_counts_add_up_over_steps_and_through_a_checkpoint():
    one = counts_of_turns(turn([1], [2]), turn([1], [3], malformed={"nonsense": "U+FFFD 1x"}))
    two = counts_of_turns(
        turn([1], [2]),
        turn([1], [3]),
        turn([1, 2, 3], [4], continues=True, drift_checked=True, drift=1),
    )
    state = RunState(timelines=one)
    state.timelines += two
    both = state_of(json.loads(json.dumps(state.as_json()))).timelines
    assert (both.episodes, both.calls, both.timelines) == (2, 5, 4)
    assert both.splits == {SAMPLED_AGAIN: 2}
    assert both.malformed == {"nonsense": 1}
    assert both.drift_at == {"1": 1}
    assert both == one + two


def test_a_checkpoint_from_before_the_counts_begins_at_none():
    content = RunState(step=3).as_json()
    del content["timelines"]
    assert state_of(content) == state_of({**content, "timelines": {}})


def test_the_report_says_it_all_in_one_block():
    report = counts_of_turns(turn([1], [2]), turn([1], [3])).report()
    assert report == {
        "episodes": 1,
        "calls": 2,
        "timelines": 2,
        "splits": {SAMPLED_AGAIN: 1},
        "malformed": {},
        "merge_ratio": 1.0,
        "token_ratio": 1.0,
        "tokens": {
            "sampled": 2,
            "trained": 2,
            "trained_without_advantage": 0,
            "not_trained": {},
        },
        "drift": {"checked": 0},
    }


def test_nothing_at_all_is_counted_as_such():
    empty = TimelineCounts.from_groups([], [])
    assert empty == TimelineCounts()
    assert (empty.merge_ratio, empty.token_ratio) == (0.0, 0.0)
