from dataclasses import replace

import pytest

from ajet.core.record.step_metrics import correlation_metrics, is_well_formed
from ajet.core.trajectory.turn import TurnNotes
from tests.core.record.record_fixtures import episode, group_of


def replying(member, reward, length, *, group=0, finish_reason="stop", notes=None):
    """An episode of one reply with so many tokens."""
    whole = episode(group=group, member=member, reward=reward)
    turn = whole.turns[0]
    completion = replace(
        turn.completion,
        token_ids=(7,) * length,
        logprobs=(-0.5,) * length,
        finish_reason=finish_reason,
    )
    return replace(whole, turns=(replace(turn, completion=completion, notes=notes or TurnNotes()),))


def test_length_is_compared_within_groups():
    # Within each group longer earns more; the second group is long and earns little.
    groups = [
        group_of(replying(0, 1.0, 20), replying(1, 0.0, 10)),
        group_of(replying(0, 0.5, 200, group=1), replying(1, 0.0, 195, group=1)),
    ]
    metrics = correlation_metrics(groups)
    assert metrics["correlation/reply_length"] == pytest.approx(1.0)
    assert metrics["correlation/episodes"] == 2.0
    assert "correlation/reply_format" not in metrics  # all are well-formed


def test_a_pearson_r_worked_out_by_hand():
    # Centred: rewards .75 -.25 -.25 -.25, lengths 2 -2 0 0; r = 2 / sqrt(.75 * 8).
    lengths, rewards = (12, 8, 10, 10), (1.0, 0.0, 0.0, 0.0)
    members = [replying(m, rewards[m], lengths[m]) for m in range(4)]
    metrics = correlation_metrics([group_of(*members)])
    assert metrics["correlation/reply_length"] == pytest.approx(2 / (0.75 * 8) ** 0.5)


def test_groups_without_signal_say_nothing():
    same = [group_of(replying(0, 1.0, 20), replying(1, 1.0, 10))]
    assert correlation_metrics(same) == {"correlation/episodes": 0.0}


def test_a_well_formed_reply_ends_by_itself_and_passes_all_checks():
    assert is_well_formed(replying(0, 1.0, 5).turns[0])
    assert not is_well_formed(replying(0, 1.0, 5, finish_reason="length").turns[0])
    assert not is_well_formed(replying(0, 1.0, 5, notes=TurnNotes(malformed={"x": "y"})).turns[0])
    assert not is_well_formed(replying(0, 1.0, 5, notes=TurnNotes(malformed_calls=["{"])).turns[0])
    members = [replying(0, 1.0, 5), replying(1, 0.0, 5, finish_reason="length")]
    metrics = correlation_metrics([group_of(*members)])
    assert metrics["correlation/reply_format"] == pytest.approx(1.0)
