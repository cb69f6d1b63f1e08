"""Rows of preferences: their forms, what of them is trained, and what is refused."""

import pytest

from ajet.core.errors import DataError
from ajet.core.task.preference_rows import preference_tasks, unread_preference_fields

USER = {"role": "user", "content": "2+2?"}
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("4", "5"))
CONTEXT = [USER, {"role": "assistant", "content": "Wait."}, {"role": "user", "content": "Well?"}]


def tasks(*rows, loss="dpo", **more):
    return preference_tasks(rows, split="train", source="rows.jsonl", loss=loss, **more)


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
        {"chosen": [{**USER, "id": 1}, GOOD], "rejected": [{**USER, "id": 2}, BAD]},
        # the form of UltraFeedback: the replies repeat the prompt
        {"prompt": "2+2?", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
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
    longer = [*CONTEXT, GOOD, USER, BAD]
    [task] = tasks({"chosen": [*CONTEXT, GOOD], "rejected": longer})
    assert replies(task.metadata["rejected"]) == ["4", "5"]
    # the same reply got another answer
    other = [*CONTEXT, GOOD, {**USER, "content": "Sure?"}, GOOD]
    [task] = tasks({"chosen": longer, "rejected": other})
    assert replies(task.metadata["rejected"]) == ["4", "4"]
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
    pair = {"prompt": "2+2?", "chosen": "4", "rejected": "5"}
    good, bad = tasks(pair, loss="kto")
    # Good ones first, so that a reply seldom stands beside the other of its prompt.
    labels = [task.metadata["label"] for task in tasks(pair, pair, loss="kto")]
    assert labels == [True, True, False, False]
    assert tasks(pair, loss="kto", only_good=True) == [good]
    assert [replies(good.init_messages), good.metadata["label"]] == [["4"], True]
    assert [replies(bad.init_messages), bad.metadata["label"]] == [["5"], False]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "2+2?", "completion": "4", "label": True},
        {"prompt": "2+2?", "completion": [USER, GOOD], "label": True},
        {"prompt": "2+2?", "completion": "4", "chosen": None, "label": "True"},
        {"messages": [USER, GOOD], "label": True},
        {"messages": [*CONTEXT, GOOD], "label": True},
    ],
)
def test_a_single_reply_is_the_last(row):
    [task] = tasks(row, loss="kto")
    assert replies(task.init_messages) == ["4"]
    assert task.metadata["label"] is True and "rejected" not in task.metadata


def test_the_fields_that_no_form_has_are_unread():
    row = {"prompt": "2+2?", "chosen": "4", "rejected": "5", "score": 1, "other": None}
    assert unread_preference_fields(row) == {"score"}
    row = {"prompt": "2+2?", "completion": "4", "label": True, "rejected": "5", "tools": []}
    assert unread_preference_fields(row) == {"rejected"}


@pytest.mark.parametrize(
    ("row", "loss", "problem"),
    [
        ({"prompt": "2+2?", "chosen": "4", "rejected": "4"}, "dpo", "are the same"),
        ({"prompt": "2+2?", "chosen": "4"}, "dpo", "rejected is not a list of messages"),
        ({"prompt": "2+2?", "chosen": "", "rejected": "4"}, "dpo", "neither text nor a tool call"),
        ({"prompt": "2+2?", "completion": "4", "label": True}, "dpo", "no chosen and rejected"),
        ({"prompt": "2+2?", "completion": "4"}, "kto", "label is None: true for a good reply"),
        ({"prompt": "2+2?", "completion": "4", "label": 1}, "kto", "label is 1: true"),
        (
            {"prompt": [USER], "chosen": [{**GOOD, "name": "a"}], "rejected": [{**GOOD, "id": 1}]},
            "dpo",
            "are the same",
        ),
        # a question in a field that nobody reads
        (
            {"question": "2+2?", "chosen": "4", "rejected": "5"},
            "dpo",
            "no user message comes before",
        ),
        (
            {
                "chosen": [{"role": "system", "content": "Add."}, USER, GOOD],
                "rejected": [USER, BAD],
            },
            "dpo",
            "no user message comes before",
        ),
        (
            {"prompt": "3+3?", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
            "dpo",
            "after the prompt comes user, not an assistant's message",
        ),
        ("4", "dpo", "is a str, not an object"),
    ],
)
def test_other_rows_are_one_line(row, loss, problem):
    with pytest.raises(DataError, match=problem) as raised:
        tasks(row, loss=loss)
    assert str(raised.value).startswith("rows.jsonl: row 1")
