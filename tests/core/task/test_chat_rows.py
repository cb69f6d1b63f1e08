"""Rows of the common shapes become the same conversation, and a bad row is one line."""

import json

import pytest

from ajet.core.config import load_config
from ajet.core.errors import DataError
from ajet.core.task.chat_rows import chat_tasks
from ajet.core.task.reader import make_reader

USER, REPLY = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}
FUNCTION = {"name": "add", "parameters": {"type": "object"}}


def tasks(*rows, train_on="all"):
    return chat_tasks(rows, split="train", source="d.jsonl", train_on=train_on)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [USER, REPLY]},
        {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]},
        {"prompt": "2+2?", "completion": "4"},
        {"prompt": [USER], "completion": [REPLY]},
        {"messages": [{**USER, "tool_calls": None}, {**REPLY, "name": None}]},  # as Parquet has it
    ],
)
def test_each_shape_is_the_same_conversation(row):
    [task] = tasks(row)
    assert task.init_messages == [USER, REPLY]
    assert (task.main_query, task.task_id) == ("2+2?", "train-0")


@pytest.mark.parametrize(
    "tools", [[FUNCTION], [{"type": "function", "function": FUNCTION}], json.dumps([FUNCTION])]
)
def test_tools_are_put_into_openais_form(tools):
    [task] = tasks({"messages": [USER, REPLY], "tools": tools})
    assert task.metadata["tools"] == [{"type": "function", "function": FUNCTION}]


def test_train_on_last_leaves_the_earlier_replies_as_context():
    chat = [USER, REPLY, USER, REPLY]
    [task] = tasks({"messages": chat}, train_on="last")
    assert [each.get("weight") for each in task.init_messages] == [None, 0, None, None]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a"}, "row 1 has neither messages, conversations, or prompt and completion, or"),
        ({"messages": []}, "row 1: messages is no list of messages"),
        ({"messages": [USER]}, "none of its messages is an assistant's with a weight"),
        ({"messages": [USER, {**REPLY, "weight": 0}]}, "none of its messages"),
        ({"messages": [USER, {**REPLY, "weight": 0.5}]}, "weight is 0.5; give 0 or 1"),
        ({"messages": [{"role": "robot"}]}, r"messages\[0\]: unknown role 'robot'"),
        ({"conversations": [{"from": "dog", "value": "w"}]}, "a message is from 'dog'"),
        ({"messages": [USER, REPLY], "tools": "{"}, "tools is text and no JSON"),
    ],
)
def test_a_row_that_is_no_conversation_is_one_line(row, message):
    with pytest.raises(DataError, match=message):
        tasks(row)


def supervised(folder, *overrides):
    chat = json.dumps({"messages": [USER, REPLY]}) + "\n"
    (folder / "train.jsonl").write_text(chat)
    (folder / "rows.jsonl").write_text(chat)
    (folder / "tasks.jsonl").write_text('{"question": "3+3?"}\n')
    path = folder / "run.yaml"
    path.write_text(
        "ajet: {kind: supervised, model: {path: m}, task_reader: {type: jsonl_dataset_file}}\n"
    )
    place = "ajet.task_reader.jsonl_dataset_file"
    given = [f"{place}.training.file_path=train.jsonl", *overrides]
    return make_reader(load_config(path, given))


def test_the_validation_split_holds_rows_or_tasks(tmp_path):
    held_out = "ajet.task_reader.jsonl_dataset_file.validation.file_path"
    rows = supervised(tmp_path, f"{held_out}=rows.jsonl")
    assert rows.get_validation_tasks()[0].init_messages == [USER, REPLY]
    tasks = supervised(tmp_path, f"{held_out}=tasks.jsonl", "ajet.supervised.validation=tasks")
    assert tasks.get_training_tasks()[0].init_messages == [USER, REPLY]
    assert tasks.get_validation_tasks()[0].main_query == "3+3?"
