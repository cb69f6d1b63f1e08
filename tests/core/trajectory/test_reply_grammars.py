"""What a reply may be under response_format and strict tools, in each family's own form."""

import json

import numpy as np
import pytest

from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.trajectory.reply_grammars import ReplyGrammars
from ajet.tool_parsers import parser_for
from tests.fakes import FAMILY_CALL, chat_tokenizer

ADD = {
    "name": "add",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "strict": True,
}
LOOK = {"name": "look", "parameters": {"type": "object", "properties": {}}}
FORMAT = {"type": "json_schema", "json_schema": {"schema": ADD["parameters"]}}
WITH_JSON = ["qwen2_5", "llama3_1", "mistral", "mistral_args", "deepseekv3", "deepseek_v3_1"]
WITH_JSON += ["kimi_k2", "nemotron_json"]
WITH_TAGS = ["qwen3_6", "glm4moe", "minimax_m2", "gptoss"]


def family(name):
    template = ChatTemplate(chat_tokenizer(name))
    parser = parser_for(template)
    return template, parser, ReplyGrammars(template, parser)


def accepts(template, grammar, text):
    """Whether the reply may be `text`, from its first to its last token."""
    matcher = template.grammars.matcher(grammar)
    for token_id in [*template.encode(text), template.end_token_id]:
        if not np.unpackbits(matcher.mask(), bitorder="little")[token_id]:
            return False
        matcher.advance(token_id)
    return True


def forced(parser, grammars, name, *functions, prompt=(1,)):
    return grammars.grammar(prompt, None, functions, parser.opening(name))


@pytest.mark.parametrize("name", WITH_JSON)
def test_a_forced_strict_call_is_read_back_with_its_schema(name):
    template, parser, grammars = family(name)
    opening = parser.opening("add")
    grammar = forced(parser, grammars, "add", ADD, LOOK)
    between, after = parser.argument_frame
    rest = between + '{"a": 12}' + after
    assert accepts(template, grammar, rest)
    calls = parser.parse(opening + rest, [{"function": ADD}]).tool_calls
    assert [(call.name, call.arguments) for call in calls] == [("add", {"a": 12})]
    for wrong in ('{"a": "x"}', '{"a": 1.5}', "{}", '{"b": 1}', '{"a": 1, "b": 1}'):
        assert not accepts(template, grammar, between + wrong + after), wrong


@pytest.mark.parametrize("name", WITH_JSON)
def test_without_a_choice_text_and_calls_are_possible_but_no_malformed_call(name):
    template, parser, grammars = family(name)
    grammar = grammars.grammar([1], None, [ADD, LOOK])
    between, after = parser.argument_frame
    call = parser.opening("add") + between + '{"a": 7}' + after
    other = parser.opening("look") + between + '{"where": [1, null]}' + after
    malformed = parser.opening("add") + between + '{"a": "7"}' + after
    assert accepts(template, grammar, "It is 7, I think.")
    assert accepts(template, grammar, "")
    assert accepts(template, grammar, call)
    assert accepts(template, grammar, other)
    assert not accepts(template, grammar, malformed)
    if not call.startswith("{"):
        assert accepts(template, grammar, "I add. " + call)


@pytest.mark.parametrize("name", ["qwen2_5", "nemotron_json", "kimi_k2"])
def test_with_a_required_choice_every_offered_tool_is_possible(name):
    template, parser, grammars = family(name)
    grammar = forced(parser, grammars, None, ADD, LOOK)
    opening, (between, after) = parser.opening(None), parser.argument_frame
    for tool, arguments in (("add", '{"a": 1}'), ("look", "{}")):
        call = parser.opening(tool) + between + arguments + after
        assert accepts(template, grammar, call[len(opening) :]), tool
    assert not accepts(template, grammar, "It is 7.")


@pytest.mark.parametrize("name", ["qwen2_5", "deepseek_v3_1"])
def test_a_format_with_tools_allows_the_format_or_calls(name):
    template, parser, grammars = family(name)
    grammar = grammars.grammar([1], FORMAT, [LOOK])
    between, after = parser.argument_frame
    assert accepts(template, grammar, '{"a": 3}')
    assert accepts(template, grammar, parser.opening("look") + between + "{}" + after)
    assert not accepts(template, grammar, '{"a": "3"}')
    assert not accepts(template, grammar, "Three.")


@pytest.mark.parametrize("name", WITH_TAGS)
def test_families_with_tagged_arguments_say_what_is_not_enforced(name, warnings):
    _, _, grammars = family(name)
    assert grammars.grammar([1], None, [ADD]) == ""
    assert grammars.grammar([1], None, [ADD]) == ""
    assert sum("arguments are sampled freely" in line for line in warnings) == 1
    with pytest.raises(ValueError, match="leave out the tools or the format"):
        grammars.grammar([1], FORMAT, [LOOK])


@pytest.mark.parametrize("name", sorted(FAMILY_CALL))
def test_every_family_can_answer_in_a_format(name):
    template, _, grammars = family(name)
    grammar = grammars.grammar([1], FORMAT)
    assert accepts(template, grammar, '{"a": 3}')
    assert not accepts(template, grammar, '{"a": 3} ')


def test_a_model_may_think_before_it_answers_in_a_format():
    template, _, grammars = family("qwen3")
    prompt = template.prompt_ids([{"role": "user", "content": "3?"}])
    grammar = grammars.grammar(prompt, FORMAT)
    assert accepts(template, grammar, '<think>\nIs it {"a": 4}?\n</think>\n\n{"a": 3}')
    assert accepts(template, grammar, '{"a": 3}')
    assert not accepts(template, grammar, "<think>\nNo.\n</think>\n\nNo.")
    silent = template.with_kwargs({"enable_thinking": False})
    prompt = silent.prompt_ids([{"role": "user", "content": "3?"}])
    grammar = grammars.grammar(prompt, FORMAT)
    assert accepts(template, grammar, '{"a": 3}')
    assert not accepts(template, grammar, '<think>\nHm.\n</think>\n\n{"a": 3}')


def test_a_prompt_that_opens_thinking_is_continued_by_it():
    template, _, grammars = family("qwen3_6")
    prompt = template.prompt_ids([{"role": "user", "content": "3?"}])
    assert template.text_of(prompt).endswith("<think>\n")
    grammar = grammars.grammar(prompt, FORMAT)
    assert accepts(template, grammar, 'Hm.\n</think>\n\n{"a": 3}')
    assert not accepts(template, grammar, '{"a": 3}')


@pytest.mark.parametrize(
    "form, good, bad",
    [
        ({"type": "json_object"}, '{"b": [1, {"c": null}]}', "[1]"),
        ({"type": "regex", "regex": r"\d{3}/[a-z]+"}, "123/abc", "12/abc"),
        ({"type": "choice", "choice": ["yes", 'no "no"', "ja ä\n"]}, 'no "no"', "no"),
        ({"type": "choice", "choice": ["yes", 'no "no"', "ja ä\n"]}, "ja ä\n", "ja"),
        ({"type": "grammar", "grammar": 'start: "a" rest\nrest: "b"+'}, "abb", "a"),
    ],
)
def test_forms(form, good, bad):
    template, _, grammars = family("qwen2_5")
    grammar = grammars.grammar([1], form)
    assert accepts(template, grammar, good) and not accepts(template, grammar, bad)
    assert json.loads(json.dumps(grammar)) == grammar


@pytest.mark.parametrize(
    "form, message",
    [
        ({"type": "regex", "regex": "[a-z"}, "invalid regex"),
        (
            {"type": "grammar", "grammar": "start: nothing"},
            "the grammar of the reply is not possible",
        ),
        (
            {"type": "json_schema", "json_schema": {"schema": {"$ref": "http://127.0.0.1/x"}}},
            "retrieving it failed",
        ),
    ],
)
def test_an_impossible_grammar_is_one_line(form, message):
    _, _, grammars = family("qwen2_5")
    with pytest.raises(ValueError, match=message) as raised:
        grammars.grammar([1], form)
    assert "\n" not in str(raised.value)
