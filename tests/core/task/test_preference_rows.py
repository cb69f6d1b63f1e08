"""Rows of preferences: their forms, what of them is trained, and what is refused."""

import pytest

from ajet.core.errors import DataError
from ajet.core.task.preference_rows import preference_tasks

USER = {"role": "user", "content": "2+2?"}
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("4", "5"))
CONTEXT = [USER, {"role": "assistant", "content": "Wait."}, {"role": "user", "content": "Well?"}]


def tasks(*rows, loss="dpo"):
    return preference_tasks(rows, split="train", source="rows.jsonl", loss=loss)


def replies(messages):
    """The assistant messages that are trained."""
    return [
        each["content"]
        for each in messages
        if each["role"] == "assistant" and each.get("weight") != 0
    ]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "2+2?", "chosen": "4", "rejected": "5"},
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": None, "chosen": [USER, GOOD], "rejected": [USER, BAD]},
    ],
)
def test_a_pair_has_two_conversations(row):
    [task] = tasks(row)
    assert (task.task_id, task.main_query) == ("train-0", "2+2?")
    assert [message["content"] for message in task.init_messages] == ["2+2?", "4"]
    assert [message["content"] for message in task.metadata["rejected"]] == ["2+2?", "5"]


def test_replies_that_both_begin_with_are_context():
    [task] = tasks({"chosen": [*CONTEXT, GOOD], "rejected": [*CONTEXT, BAD]})
    assert replies(task.init_messages) == ["4"]
    assert replies(task.metadata["rejected"]) == ["5"]
    [task] = tasks({"prompt": CONTEXT, "chosen": [GOOD], "rejected": [BAD]})
    assert replies(task.init_messages) == ["4"]


def test_system_and_tools_are_those_of_other_rows():
    tool = {"name": "add", "parameters": {"type": "object", "properties": {}}}
    row = {"prompt": "2+2?", "chosen": "4", "rejected": "5", "system": "Add.", "tools": [tool]}
    [task] = tasks(row)
    assert task.init_messages[0] == task.metadata["rejected"][0]
    assert task.init_messages[0]["content"] == "Add."
    assert task.metadata["tools"] == [{"type": "function", "function": tool}]


def test_for_kto_a_pair_is_two_rows():
    good, bad = tasks({"prompt": "2+2?", "chosen": "4", "rejected": "5"}, loss="kto")
    assert [replies(good.init_messages), good.metadata["label"]] == [["4"], True]
    assert [replies(bad.init_messages), bad.metadata["label"]] == [["5"], False]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "2+2?", "completion": "4", "label": True},
        {"messages": [USER, GOOD], "label": True},
        {"messages": [*CONTEXT, GOOD], "label": True},
    ],
)
def test_a_single_reply_is_the_last(row):
    [task] = tasks(row, loss="kto")
    assert replies(task.init_messages) == ["4"]
    assert task.metadata["label"] is True and "rejected" not in task.metadata


@pytest.mark.parametrize(
    ("row", "loss", "problem"),
    [
        ({"prompt": "2+2?", "chosen": "4", "rejected": "4"}, "dpo", "are the same"),
        ({"prompt": "2+2?", "chosen": "4"}, "dpo", "rejected is not a list of messages"),
        ({"prompt": "2+2?", "chosen": "", "rejected": "4"}, "dpo", "neither text nor a tool call"),
        ({"prompt": "2+2?", "completion": "4", "label": True}, "dpo", "no chosen and rejected"),
        ({"prompt": "2+2?", "completion": "4"}, "kto", "label is None: true for a good reply"),
        ({"prompt": "2+2?", "completion": "4", "label": 1}, "kto", "label is 1: true"),
        ("4", "dpo", "is a str, not an object"),
    ],
)
def test_other_rows_are_one_line(row, loss, problem):
    with pytest.raises(DataError, match=problem) as raised:
        tasks(row, loss=loss)
    assert str(raised.value).startswith("rows.jsonl: row 1")
