"""Which two episodes of a group are a pair, and which groups have none."""

from types import SimpleNamespace

import pytest

from ajet.sources import recorded

SYSTEM = {"role": "system", "content": "Count."}
USER = {"role": "user", "content": "2+2?"}


def pairs_of(monkeypatch, *groups, **options):
    """The pairs of groups of `(reward, messages before the reply, replies, tools)`."""
    episodes, rows = [], {}
    for group, members in enumerate(groups):
        for number, (reward, before, replies, tools) in enumerate(members):
            name = f"{group}-{number}"
            row = SimpleNamespace(reward=reward, group_id=group, task_id="t", episode_id=name)
            turn = SimpleNamespace(messages=before, notes=SimpleNamespace(opening=None))
            episodes.append(SimpleNamespace(row=row, turns=[turn]))
            rows[name] = [
                (
                    {
                        "task_id": name,
                        "messages": [*before, {"role": "assistant", "content": reply}],
                        "tools": tools,
                        "reward": reward,
                        "vocabulary": "v",
                    },
                    True,
                )
                for reply in replies
            ]
    reader = SimpleNamespace(walk=lambda which: reversed(episodes))
    monkeypatch.setattr(recorded, "_rows_of", lambda each, _: rows[each.row.episode_id])
    return recorded.recorded_pairs(
        reader, None, **({"min_reward": 1.0, "per_task": None} | options)
    )


def member(reward, before=(USER,), replies=("r",), tools=None):
    return reward, list(before), list(replies), tools


def test_the_best_and_the_worst_are_a_pair(monkeypatch):
    found = pairs_of(monkeypatch, [member(0.5), member(2.0), member(-1.0)])
    [row] = found.rows
    assert (row["task_id"], row["rewards"], found.num_exact) == ("0-1", [2.0, -1.0], 2)


@pytest.mark.parametrize(
    ("members", "counts"),
    [
        ([member(1.0), member(1.0)], (0, 0)),
        ([member(0.5), member(0.0)], (0, 0)),  # the best did not earn enough
        ([member(1.0)], (0, 0)),
        ([member(1.0, replies=("a", "b")), member(0.0)], (1, 0)),
        ([member(1.0, (SYSTEM, USER)), member(0.0)], (0, 1)),
        ([member(1.0, tools=[{"type": "function"}]), member(0.0)], (0, 1)),
    ],
)
def test_groups_without_a_pair_are_left_out(monkeypatch, members, counts):
    found = pairs_of(monkeypatch, members)
    assert not found.rows
    assert (found.num_of_several, found.num_asked_otherwise) == counts


def test_per_task_keeps_the_newest_in_the_records_order(monkeypatch):
    groups = [[member(1.0), member(0.0)] for _ in range(3)]
    assert [row["task_id"] for row in pairs_of(monkeypatch, *groups, per_task=2).rows] == [
        "1-0",
        "2-0",
    ]
