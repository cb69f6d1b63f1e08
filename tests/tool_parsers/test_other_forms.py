"""Calls in another form than the run's parser reads are noticed, and answers are not."""

import pytest

from ajet.core.inference.chat_template import ChatTemplate
from ajet.tool_parsers import PlainJsonParser, parser_for
from tests.fakes import FAMILY_CALL, chat_tokenizer

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
QWEN = parser_for(ChatTemplate(chat_tokenizer("qwen2_5")))
CALL = '{"name": "add", "arguments": {"a": 1}}'
IN_OTHER_FORMS = {
    f"```json\n{CALL}\n```": "json",
    f"```\n{CALL}\n```": "json",
    f"Let me add.\n\n```json\n{CALL}\n```\nThat is all.": "json",
    f"```json\n[{CALL}, {CALL}]\n```": "json",
    f"```json\n{CALL}\n{CALL}\n```": "json",
    f"```json\n{CALL}": "json",  # the model ended without the fence
    f"<tools>\n{CALL}\n</tools>": "json",
    f'```json\n{{"type": "function", "function": {CALL}}}\n```': "json",
    CALL: "json",
    '{"name": "add", "parameters": {"a": 1}}': "json",
    FAMILY_CALL["llama3_2"]: "llama3",
    FAMILY_CALL["qwen3_5_nothink"]: "qwen3_coder",
    FAMILY_CALL["mistral"]: "mistral",
    FAMILY_CALL["mistral_args"]: "mistral",
    FAMILY_CALL["deepseekv3"]: "deepseek",
    FAMILY_CALL["gptoss"]: "gpt_oss",
    "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>": "glm",
    FAMILY_CALL["kimi_k2"]: "kimi_k2",
    FAMILY_CALL["minimax_m2"].partition("</think>\n\n")[2]: "minimax_m2",
    FAMILY_CALL["nemotron_json"]: "nemotron",
    "<|tool_call>call:add{a:1}<tool_call|>": "gemma",
}
ANSWERS = [
    '```json\n{"name": "Ann", "arguments": {"a": 1}}\n```',  # no tool of this name
    '```json\n{"name": "add", "unit": "cm"}\n```',
    '```json\n{"add": {"a": 1}}\n```',
    f"I could call it with {CALL}, but 2 is enough.",
    "The sum that add gives is 2.",
    f"```json\n[{CALL}, 3]\n```",
    "",
]


@pytest.mark.parametrize(("text", "form"), IN_OTHER_FORMS.items())
def test_a_call_in_another_form_is_named_and_stays_content(text, form):
    reply = QWEN.parse(text, TOOLS)
    assert (reply.other_form, reply.tool_calls, reply.content) == (form, (), text)
    assert QWEN.parse(text).other_form is None  # nothing was offered


@pytest.mark.parametrize("text", ANSWERS)
def test_an_answer_is_not_taken_for_a_call_in_another_form(text):
    assert QWEN.parse(text, TOOLS).other_form is None
    assert PlainJsonParser().parse(text, TOOLS).tool_calls == ()


def test_a_call_in_the_runs_own_form_is_no_other():
    for name, family in (("auto", "qwen2_5"), ("json", "qwen2_5")):
        parser = parser_for(ChatTemplate(chat_tokenizer(family)), name)
        text = f"```json\n{CALL}\n```" if name == "json" else FAMILY_CALL[family]
        reply = parser.parse(text, TOOLS)
        assert (len(reply.tool_calls), reply.other_form) == (1, None)


def test_plain_json_that_is_cut_is_malformed_where_it_names_a_tool():
    cut = f"```json\n{CALL[:-4]}\n```"
    assert PlainJsonParser().parse(f"So:\n{cut}", TOOLS).malformed == (cut,)
    assert PlainJsonParser().parse(cut.replace("add", "Ann"), TOOLS).malformed == ()
