import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.core.errors import ConfigError
from ajet.core.inference.chat_template import ChatTemplate
from ajet.tool_parsers import HermesParser, ParsedReply, ToolCall, parser_for
from tests.fakes import chat_tokenizer

ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
PARSE = HermesParser().parse


def test_a_call_is_taken_out_of_the_content():
    assert PARSE(f"Let me see.\n{ADD}") == ParsedReply(
        content="Let me see.", tool_calls=(ToolCall("call_0", "add", {"a": 1}),)
    )


def test_the_closing_tag_may_stand_inside_an_argument():
    reply = PARSE('<tool_call>{"name": "say", "arguments": {"s": "</tool_call>"}}</tool_call>')
    assert reply.tool_calls[0].arguments == {"s": "</tool_call>"}


@pytest.mark.parametrize(
    "bad",
    [
        '<tool_call>{"name": "add", "arguments": {"a": 1}',  # cut short
        '<tool_call>{"name": "add", "arguments": {"a": 1}}',  # not closed
        "<tool_call>add(1, 2)</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "add", "parameters": {"a": 1}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {}} and more</tool_call>',
        "<tool_call></tool_call>",
        "<tool_call>" + "[" * 100_000,
    ],
)
def test_a_malformed_call_stays_in_the_content(bad):
    assert PARSE(f"x {bad}") == ParsedReply(content=f"x {bad}", malformed=(bad,))


def test_a_good_call_after_a_malformed_one_is_found():
    reply = PARSE(f"<tool_call>oops{ADD}")
    assert reply.content == "<tool_call>oops"
    assert reply.malformed == ("<tool_call>oops",)
    assert [c.name for c in reply.tool_calls] == ["add"]


@pytest.mark.parametrize("text", ["<think>\nhm\n</think>\n\nyes", "hm\n</think>\n\nyes"])
def test_thinking_is_split_off_even_where_the_template_opened_it(text):
    assert PARSE(text) == ParsedReply(content="yes", reasoning="hm")


def test_a_call_that_was_only_thought_of_is_no_call():
    assert PARSE(f"<think>{ADD}</think>no") == ParsedReply(content="no", reasoning=ADD)


def test_thinking_is_split_only_where_the_template_knows_of_it():
    text = "<think>a</think>b"
    for family, reasoning in [("qwen3", "a"), ("qwen2_5", None), ("llama3", None)]:
        parser = parser_for(ChatTemplate(chat_tokenizer(family)))
        assert parser.parse(text).reasoning == reasoning
        assert parser.parse(ADD).tool_calls


def test_an_unknown_parser_is_named_with_the_choices():
    with pytest.raises(ConfigError, match="no tool parser named 'herms': choose one of auto, herm"):
        parser_for(ChatTemplate(chat_tokenizer("qwen2_5")), "herms")


PIECES = ["<tool_call>", "</tool_call>", "<think>", "</think>", ADD, '{"name":', "{", '"}', "\n"]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=12).map("".join)


@given(TEXTS)
def test_any_text_parses_and_nothing_malformed_is_lost(text):
    reply = PARSE(text)
    position = 0
    for bad in reply.malformed:  # in order, without overlap, letter for letter but for the ends
        position = reply.content.index(bad.strip(), position) + len(bad.strip())
    if not reply.tool_calls and reply.reasoning is None:
        assert reply.content == text
    assert all(isinstance(c.arguments, dict) and c.name for c in reply.tool_calls)


@given(TEXTS)
def test_without_thinking_every_letter_is_content_or_a_call(text):
    reply = HermesParser(splits_thinking=False).parse(text)
    assert reply.reasoning is None
    assert len(reply.content) <= len(text)
    if not reply.tool_calls:
        assert reply.content == text


# --- thinking is known by its place ---------------------------------------------------------------

OPENED = "<|im_start|>assistant\n<think>\n"  # the end of a prompt
NOT_OPENED = "<|im_start|>assistant\n"


def wrote(text):
    return f'<tool_call>\n{{"name": "write", "arguments": {{"text": "{text}"}}}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "prompt_end"),
    [(f"<think>hm</think>{ADD}", None), (f"hm</think>{ADD}", OPENED)],
)
def test_thinking_before_a_call_with_thinking_tags_is_split_off(text, prompt_end):
    reply = PARSE(f"{text}{wrote('</think>')}", None, prompt_end)
    assert reply.reasoning == "hm"
    assert [call.arguments for call in reply.tool_calls] == [{"a": 1}, {"text": "</think>"}]


def test_a_call_that_was_begun_in_the_thinking_does_not_hide_its_end():
    text = f"I write <tool_call> and then the JSON.</think>{ADD}"
    reply = PARSE(text, None, OPENED)
    assert reply.reasoning == "I write <tool_call> and then the JSON."
    assert (reply.content, len(reply.tool_calls), reply.malformed) == ("", 1, ())


def test_a_closing_tag_in_an_answer_is_text_where_no_thinking_was_opened():
    text = "Write </think> at the end."
    assert PARSE(text, None, NOT_OPENED) == ParsedReply(text)
    assert PARSE(text, None, OPENED) == ParsedReply(" at the end.", reasoning="Write ")
    text = "Use <think> and </think> tags."
    assert PARSE(text, None, NOT_OPENED) == PARSE(text) == ParsedReply(text)
