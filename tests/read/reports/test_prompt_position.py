"""Which message a position of a prompt lies in."""

from dataclasses import replace

import numpy as np
import pytest

from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.trajectory.turn import TurnNotes
from ajet.read.episode_reader import TurnRecord
from ajet.read.reports.replay_report import describe_position
from tests.fakes import chat_tokenizer

TEMPLATES = {
    family: ChatTemplate(chat_tokenizer(family)) for family in ("qwen2_5", "qwen3", "llama3")
}
ADD = {"type": "function", "function": {"name": "add_up", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "add_up", "arguments": '{"a": 1}'}}
MESSAGES = [
    {"role": "system", "content": "  Be brief. "},
    {"role": "user", "content": [{"type": "text", "text": "Two and two?"}]},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "It is 4.", "tool_call_id": "c"},
]


def turn(template, messages=MESSAGES, tools=(ADD,)):
    ids = np.array(template.prompt_ids(messages, list(tools)), np.int32)
    nothing, offered = np.array([]), list(tools)
    row = ("stop", 0, None, None, 0.0, 0.0, TurnNotes(), ids, nothing, nothing, None, None, None, 0)
    return TurnRecord(0, "a", "t", True, messages, offered, {}, *row)


def place(family, words, **options):
    """Where the token lies that these words begin in."""
    template = TEMPLATES[family]
    one = turn(template, **options)
    ids = one.prompt_ids.tolist()
    start = template.text_of(ids).index(words)
    at = next(n for n in range(len(ids)) if len(template.text_of(ids[: n + 1])) > start)
    return describe_position(one, at, template)


@pytest.mark.parametrize("family", TEMPLATES)
@pytest.mark.parametrize(
    ("words", "where"),
    [
        ("Be brief", "message 0 (system)"),
        ("Two and", "message 1 (user)"),
        ("It is 4", "message 3 (tool)"),
        (" is 4.", "message 3 (tool)"),
    ],
)
def test_a_position_lies_in_the_message_that_was_written_there(family, words, where):
    assert place(family, words) == where


@pytest.mark.parametrize("family", ["qwen2_5", "qwen3"])
def test_the_tools_stand_apart_from_the_message_around_them(family):
    assert place(family, "add_up") == "the tools"


def test_what_the_template_writes_for_the_reply_follows_the_last_message():
    template = TEMPLATES["qwen2_5"]
    one = turn(template)
    last = len(one.prompt_ids) - 1
    assert describe_position(one, last, template) == "what follows the last message"
    assert describe_position(one, last + 1, template) == "what follows the last message"


def test_a_message_that_went_on_differs_in_that_message():
    assert place("qwen2_5", "<|im_end|>\n<|im_start|>assistant", tools=()) == "message 1 (user)"


def test_a_prompt_of_ids_alone_has_no_messages():
    template = TEMPLATES["qwen2_5"]
    bare = replace(turn(template), messages=[])
    assert describe_position(bare, 0, template) == "the ids that the workflow gave"
