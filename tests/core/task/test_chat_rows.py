"""Rows of the common shapes become the same conversation, and a bad row is one line."""

import json

import pytest

from ajet.core.config import load_config
from ajet.core.errors import DataError
from ajet.core.task.chat_rows import chat_tasks, unread_chat_fields
from ajet.core.task.reader import make_reader, task_from_row
from ajet.core.task.row_messages import row_messages

USER, REPLY = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}
FUNCTION = {"name": "add", "parameters": {"type": "object"}}


def with_call(arguments):
    call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def tasks(*rows, train_on="all"):
    return chat_tasks(rows, split="train", source="d.jsonl", train_on=train_on)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [USER, REPLY]},
        {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]},
        {"prompt": "2+2?", "completion": "4"},
        {"prompt": [USER], "completion": [REPLY]},
        {"messages": json.dumps([USER, REPLY])},
        {"prompt": json.dumps([USER]), "completion": json.dumps([REPLY])},
        {"instruction": "2+2?", "input": "", "output": "4"},
        {"messages": [{**USER, "tool_calls": None}, {**REPLY, "name": None}]},  # as Parquet has it
    ],
)
def test_each_shape_is_the_same_conversation(row):
    [task] = tasks(row)
    assert task.init_messages == [USER, REPLY]
    assert (task.main_query, task.task_id) == ("2+2?", "train-0")


def test_a_task_may_have_its_messages_as_json_text_but_not_as_pythons():
    system = {"role": "system", "content": "Be brief."}
    task = task_from_row({"prompt": json.dumps([system, USER])}, 0, split="train", source="d.csv")
    assert (task.main_query, task.init_messages) == ("2+2?", [system])
    listed = json.dumps([{"content": "2+2?"}])  # no messages: the question is about them
    assert task_from_row({"prompt": listed}, 0, split="train", source="d").main_query == listed
    with pytest.raises(DataError) as refused:
        task_from_row({"prompt": str([system, USER])}, 0, split="train", source="d.csv")
    assert str(refused.value) == (
        "d.csv: row 1: prompt: its text begins as messages do and is not JSON: write it with "
        "json.dumps"
    )


@pytest.mark.parametrize(
    "tools", [[FUNCTION], [{"type": "function", "function": FUNCTION}], json.dumps([FUNCTION])]
)
def test_tools_are_put_into_openais_form(tools):
    [task] = tasks({"messages": [USER, REPLY], "tools": tools})
    assert task.metadata["tools"] == [{"type": "function", "function": FUNCTION}]


def test_the_functions_of_former_rows_are_tools_and_a_schema_may_be_text():
    [task] = tasks({"messages": [USER, REPLY], "functions": [FUNCTION]})
    assert task.metadata["tools"] == [{"type": "function", "function": FUNCTION}]
    as_text = {**FUNCTION, "parameters": json.dumps(FUNCTION["parameters"])}
    [task] = tasks({"messages": [USER, REPLY], "tools": [as_text]})
    assert task.metadata["tools"] == [{"type": "function", "function": FUNCTION}]


def test_a_row_of_alpaca_is_its_history_and_the_instruction_with_its_input():
    row = {"instruction": "Add.", "input": "2, 2", "output": "4", "history": [["2+2?", "4"]]}
    [task] = tasks(row)
    assert task.init_messages == [USER, REPLY, {"role": "user", "content": "Add.\n2, 2"}, REPLY]


def test_an_empty_reply_may_be_context_or_have_been_sampled():
    empty = {"role": "assistant", "content": ""}
    [task] = tasks({"messages": [USER, {**empty, "weight": 0}, USER, REPLY]})
    assert task.init_messages[1]["content"] == ""
    [task] = tasks({"messages": [USER, {**empty, "token_ids": [257]}]})
    assert task.init_messages[1]["token_ids"] == [257]


def test_train_on_last_leaves_the_earlier_replies_as_context():
    chat = [USER, REPLY, USER, REPLY]
    [task] = tasks({"messages": chat}, train_on="last")
    assert [each.get("weight") for each in task.init_messages] == [None, 0, None, None]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a"}, "row 1 has neither messages, conversations, or prompt and completion, or"),
        ({"messages": []}, "row 1: messages is not a list of messages"),
        ({"messages": [USER]}, "none of its messages is an assistant's with a weight"),
        ({"messages": [USER, {**REPLY, "weight": 0}]}, "none of its messages"),
        ({"messages": [USER, {**REPLY, "weight": 0.5}]}, "weight is 0.5; give 0 or 1"),
        ({"messages": [{"role": "robot"}]}, r"messages\[0\]: unknown role 'robot'"),
        ({"conversations": [{"from": "dog", "value": "w"}]}, "a message is from 'dog'"),
        ({"messages": [USER, REPLY], "tools": "{"}, "tools is not valid JSON"),
        ({"messages": [USER, REPLY], "tools": [{"type": "function"}]}, "tools: a tool has no"),
        ({"messages": [USER, REPLY], "tools": [FUNCTION], "functions": [FUNCTION]}, "keep tools"),
        (
            {"messages": [USER, {**REPLY, "content": " "}]},
            r"messages\[1\], an assistant's, has nei",
        ),
        ({"messages": [USER, {"role": "assistant", "refusal": " "}]}, "neither text nor a tool c"),
        ({"messages": [USER, {**REPLY, "refusal": "no"}]}, "has content and a refusal; keep one"),
        ({"messages": [{**USER, "content": " "}, REPLY]}, r"\[0\]: the user's message is empty"),
        ({"messages": [USER, with_call("{")]}, "the arguments of its call of add are not a JSON"),
        ({"messages": [USER, with_call([1])]}, "the arguments of its call of add are not a JSON"),
        (
            {"messages": [{"role": "user", "content": "<image>?"}, REPLY], "images": ["a", "b"]},
            "images has 2 images, and the messages have 1 places for them",
        ),
        ({"conversations": [{"from": "function_call", "value": "add(1)"}]}, "is not JSON"),
        ({"conversations": [{"from": "function_call", "value": "[]"}]}, "is not an object"),
        ({"instruction": "a", "output": "b", "history": [["c"]]}, "history is not a list of pairs"),
        ({"messages": [USER, REPLY], "system": {"text": "a"}}, "system is not text"),
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


def test_a_reply_of_calls_alone_may_have_an_empty_list_as_its_content():
    """`ajet data distill` writes the messages that AgentScope sent."""
    function = {"name": "f", "arguments": '{"x": 1}'}
    call = {"id": "a", "type": "function", "function": function}
    reply = {"role": "assistant", "content": [], "tool_calls": [call]}
    [_, message] = row_messages([{"role": "user", "content": "q"}, reply], "row 1")
    assert message["content"] == "" and message["tool_calls"] == [call]


def test_arguments_with_half_a_character_are_refused():
    whole, half = (with_call(f'{{"x": "{text}"}}') for text in (r"\ud83d\ude00", r"\ud83d"))
    assert row_messages([USER, whole], "row 1")[1]["tool_calls"] == whole["tool_calls"]
    with pytest.raises(DataError, match="the arguments of its call of add are not a JSON object"):
        row_messages([USER, half], "row 1")


@pytest.mark.parametrize("name", ["arguments", "parameters", "args", "input"])
@pytest.mark.parametrize(
    "reply",
    [
        lambda call: {"role": "assistant", "tool_calls": [call]},
        lambda call: {"role": "assistant", "tool_calls": [{"type": "tool_call", **call}]},
        lambda call: {"role": "assistant", "tool_calls": [{"function": call}]},
        lambda call: {"role": "assistant", "function_call": call},
        lambda call: {"from": "function_call", "value": json.dumps(call)},
    ],
)
def test_arguments_are_read_under_each_of_their_names(name, reply):
    user = {"role": "user", "content": "now?"}
    [task] = tasks({"messages": [user, reply({"name": "now", name: {"zone": "UTC"}})]})
    [call] = task.init_messages[1]["tool_calls"]
    assert call["function"] == {"name": "now", "arguments": {"zone": "UTC"}}


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", **FUNCTION},
        {"name": "add", "input_schema": FUNCTION["parameters"]},
    ],
)
def test_tools_of_other_apis_are_put_into_the_same_form(tool):
    [task] = tasks({"messages": [USER, REPLY], "tools": [tool]})
    assert task.metadata["tools"] == [{"type": "function", "function": FUNCTION}]


def test_replies_in_the_prompt_of_a_completion_are_context():
    [task] = tasks({"prompt": [USER, REPLY, USER], "completion": "four"})
    weights = [message.get("weight", 1) for message in task.init_messages]
    assert weights == [1, 0, 1, 1]
    with pytest.raises(DataError, match="the prompt ends with an assistant's message"):
        tasks({"prompt": [USER, REPLY], "completion": "four"})


@pytest.mark.parametrize("mask", ["loss", "train", "training", "weight"])
def test_the_masks_of_other_trainers_are_weights(mask):
    rows = [USER, {**REPLY, mask: False}, USER, {**REPLY, mask: True}]
    [task] = tasks({"messages": rows})
    assert [bool(task.init_messages[n]["weight"]) for n in (1, 3)] == [False, True]


def test_fields_of_messages_that_nothing_reads_are_named():
    row = {"messages": [{**USER, "id": 7}, {**REPLY, "name": None, "score": 0.5}], "origin": "x"}
    assert unread_chat_fields(row) == {"origin", "messages.id", "messages.score"}
