"""What every family's parser holds to, and what is particular to each (Hermes has its own file)."""

import pytest

from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.tool_parser import ToolCall
from ajet.tool_parsers import (
    DeepSeekParser,
    GemmaParser,
    GlmParser,
    GptOssParser,
    HermesParser,
    KimiK2Parser,
    Llama3Parser,
    MiniMaxM2Parser,
    MistralParser,
    NemotronParser,
    ParsedReply,
    PlainJsonParser,
    Qwen3CoderParser,
    detect_family,
    parser_for,
)
from ajet.tool_parsers.mistral import MISTRAL_THINK
from ajet.tool_parsers.scanning import THINK
from tests.fakes import FAMILY_CALL, FAMILY_EOS, chat_tokenizer

TOKENIZERS = {family: chat_tokenizer(family) for family in FAMILY_EOS}
TEMPLATES = {family: ChatTemplate(tokenizer) for family, tokenizer in TOKENIZERS.items()}
TYPES = {
    "s": {"type": "string"},
    "i": {"type": "integer"},
    "x": {"type": "number"},
    "b": {"type": "boolean"},
    "n": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "l": {"type": "array"},
    "o": {"type": "object"},
}
PARAMETERS = {"type": "object", "properties": TYPES}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": PARAMETERS}}
    for name in ("add", "sub")
]
QUESTION = [{"role": "user", "content": "q"}]


def parsed(family, ids):
    """As the recorder reads sampled ids."""
    parser = parser_for(TEMPLATES[family])
    text = TEMPLATES[family].decode(ids, keep=parser.special_tokens)
    return parser.parse(text, TOOLS).without_marks()


def called(reply):
    return [(call.name, call.arguments) for call in reply.tool_calls]


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("qwen2_5", "hermes"),
        ("qwen3", "hermes"),
        ("qwen3_6", "qwen3_coder"),
        ("llama3_1", "llama3"),
        ("llama3_2", "llama3"),
        ("mistral", "mistral"),
        ("deepseekv3", "deepseek"),
        ("gptoss", "gpt_oss"),
        ("glm4moe", "glm"),
        ("kimi_k2", "kimi_k2"),
        ("minimax_m2", "minimax_m2"),
        ("nemotron_json", "nemotron"),
        ("nemotron_3_nano", "qwen3_coder"),
        ("gemma4_v5", "gemma"),
        ("llama3", None),
        ("lfm2_v2", None),
    ],
)
def test_the_template_tells_whose_calls_it_writes(family, name):
    assert detect_family(TEMPLATES[family]) == name


@pytest.mark.parametrize("family", FAMILY_CALL)
def test_a_call_as_the_family_writes_it_is_read(family):
    reply = parsed(family, TEMPLATES[family].encode(FAMILY_CALL[family]))
    assert called(reply) == [("add", {"a": 1})]
    assert (reply.content, reply.malformed) == ("", ())
    thinks = "So I add." in FAMILY_CALL[family]
    assert reply.reasoning == ("So I add." if thinks else None)


CALL_OF_ANOTHER_TOOL = {family: call.replace("add", "fly") for family, call in FAMILY_CALL.items()}


@pytest.mark.parametrize("family", FAMILY_CALL)
def test_a_call_of_a_tool_that_was_not_offered_is_a_call(family):
    reply = parsed(family, TEMPLATES[family].encode(CALL_OF_ANOTHER_TOOL[family]))
    assert called(reply) == [("fly", {"a": 1})]


WITH_TOKENS = ["llama3_2", "mistral", "mistral_args", "deepseekv3", "deepseek_v3_1", "gptoss"]
WITH_TOKENS += ["kimi_k2", "gemma4_v5"]


@pytest.mark.parametrize("family", WITH_TOKENS)
def test_a_call_whose_special_tokens_are_only_spelled_is_text(family):
    text = FAMILY_CALL[family]
    ids = TEMPLATES[family].encode(TEMPLATES[family].marked(text))
    assert TOKENIZERS[family].decode(ids) == text
    reply = parsed(family, ids)
    assert (reply.content, reply.tool_calls) == (text, ())


REST = {  # what goes on from the opening of a forced call of `add`, and of any
    "qwen2_5": (' {"a": 1}}\n</tool_call>', '\n{"name": "add", "arguments": {"a": 1}}</tool_call>'),
    "qwen3_6": ("<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>", "=add>\n"),
    "llama3_1": (' {"a": 1}}', ' "add", "parameters": {"a": 1}}'),
    "mistral": (' {"a": 1}}]', '[{"name": "add", "arguments": {"a": 1}}]'),
    "mistral_args": ('{"a": 1}', 'add[ARGS]{"a": 1}'),
    "deepseekv3": (
        '{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        'function<｜tool▁sep｜>add\n```json\n{"a": 1}\n```<｜tool▁call▁end｜>',
    ),
    "deepseek_v3_1": (
        '{"a": 1}<｜tool▁call▁end｜>',
        'add<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>',
    ),
    "gptoss": ('{"a": 1}<|call|>', '.add <|constrain|>json<|message|>{"a": 1}<|call|>'),
    "glm4moe": (
        "<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        "add<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>",
    ),
    "kimi_k2": (
        '{"a": 1}<|tool_call_end|><|tool_calls_section_end|>',
        '.add:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>',
    ),
    "minimax_m2": (
        '<parameter name="a">1</parameter>\n</invoke>\n</minimax:tool_call>',
        '="add">\n<parameter name="a">1</parameter>\n</invoke>\n</minimax:tool_call>',
    ),
    "nemotron_json": (
        ' {"a": 1}}]</TOOLCALL>',
        '[{"name": "add", "arguments": {"a": 1}}]</TOOLCALL>',
    ),
    "gemma4_v5": ("a:1}<tool_call|>", ":add{a:1}<tool_call|>"),
}
REST["qwen3_6"] = (REST["qwen3_6"][0], REST["qwen3_6"][1] + REST["qwen3_6"][0])


@pytest.mark.parametrize("family", REST)
@pytest.mark.parametrize("name", ["add", None])
def test_a_forced_opening_is_the_beginning_of_a_call(family, name):
    opening = parser_for(TEMPLATES[family]).opening(name)
    text = opening + REST[family][0 if name else 1]
    assert called(parsed(family, TEMPLATES[family].encode(text))) == [("add", {"a": 1})]
    whole = TEMPLATES[family].encode(text)  # the opening ends where a token does
    ids = TEMPLATES[family].encode(opening)
    assert whole[: len(ids)] == ids


@pytest.mark.parametrize("family", ["llama3", "lfm2_v2"])
def test_a_call_cannot_be_forced_where_its_form_is_not_read(family):
    parser = parser_for(TEMPLATES[family])
    with pytest.raises(ValueError, match="no call can be forced: omit tool_choice, or name"):
        parser.opening("add")
    assert parser.parse('<tool_call>{"name": "stop"}</tool_call>').tool_calls


def test_lfm2s_calls_stay_content():
    text = "<|tool_call_start|>[add(a=1)]<|tool_call_end|>"
    assert parsed("lfm2_v2", TEMPLATES["lfm2_v2"].encode(text)) == ParsedReply(text)


# Values that JSON, or what comes after a parser, cannot hold.
TOO_MUCH = ["NaN", "-Infinity", "1e999", "9" * 5000, "[" * 65 + "]" * 65, "[" * 100_000]
IN_JSON = {
    "qwen2_5": '<tool_call>{"name": "add", "arguments": {"a": VALUE}}</tool_call>',
    "llama3_1": '{"name": "add", "parameters": {"a": VALUE}}',
    "mistral": '[TOOL_CALLS][{"name": "add", "arguments": {"a": VALUE}}]',
    "mistral_args": '[TOOL_CALLS]add[ARGS]{"a": VALUE}',
    "deepseek_v3_1": '<｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": VALUE}<｜tool▁call▁end｜>',
    "gptoss": '<|channel|>commentary to=functions.add<|message|>{"a": VALUE}<|call|>',
    "kimi_k2": "<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
    '{"a": VALUE}<|tool_call_end|>',
    "nemotron_json": '<TOOLCALL>[{"name": "add", "arguments": {"a": VALUE}}]</TOOLCALL>',
    "gemma4_v5": "<|tool_call>call:add{a:VALUE}<tool_call|>",
}


@pytest.mark.parametrize("value", TOO_MUCH, ids=[v[:9] for v in TOO_MUCH])
@pytest.mark.parametrize("family", IN_JSON)
def test_a_call_with_a_value_that_nothing_can_hold_stays_content(family, value):
    text = IN_JSON[family].replace("VALUE", value)
    parser = parser_for(TEMPLATES[family])
    assert parser.parse(text) == ParsedReply(text, malformed=(text,))
    assert parser.parse(IN_JSON[family].replace("VALUE", "[" * 60 + "]" * 60)).tool_calls


def test_half_a_character_in_an_argument_is_replaced():
    reply = Llama3Parser().parse('{"name": "add", "parameters": {"a": "\\ud83d"}}')
    assert called(reply.without_marks()) == [("add", {"a": "\ufffd"})]


def of(parser, text, tools=None):
    reply = parser.parse(text, tools)
    return called(reply), reply.reasoning, len(reply.malformed)


TAGGED = [  # each a call of `write` with VALUE as text
    (
        Qwen3CoderParser(),
        "<tool_call>\n<function=write>\n<parameter=text>\nVALUE\n</parameter>\n</function>\n</tool_call>",
    ),
    (
        GlmParser(),
        "<tool_call>write\n<arg_key>text</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>",
    ),
    (
        MiniMaxM2Parser(),
        '<minimax:tool_call><invoke name="write"><parameter name="text">VALUE</parameter></invoke>'
        "</minimax:tool_call>",
    ),
    (
        DeepSeekParser(),
        '<｜tool▁call▁begin｜>write<｜tool▁sep｜>{"text": "VALUE"}<｜tool▁call▁end｜>',
    ),
    (
        KimiK2Parser(),
        '<|tool_call_begin|>functions.write:0<|tool_call_argument_begin|>{"text": "VALUE"}'
        "<|tool_call_end|>",
    ),
    (NemotronParser(), '<TOOLCALL>[{"name": "write", "arguments": {"text": "VALUE"}}]</TOOLCALL>'),
    (GemmaParser(), '<|tool_call>call:write{text:<|"|>VALUE<|"|>}<tool_call|>'),
    (Llama3Parser(splits_thinking=True), '{"name": "write", "parameters": {"text": "VALUE"}}'),
    (MistralParser(THINK), '[TOOL_CALLS]write[ARGS]{"text": "VALUE"}'),
    (MistralParser(MISTRAL_THINK), '[TOOL_CALLS]write[ARGS]{"text": "VALUE"}'),
    (
        GptOssParser(),
        '<|channel|>commentary to=functions.write<|message|>{"text": "VALUE"}<|call|>',
    ),
    (PlainJsonParser(), '```json\n{"name": "write", "arguments": {"text": "VALUE"}}\n```'),
]
THINKING_TAGS = ["<think> </think>", "[THINK] [/THINK]", "<|channel>thought <channel|>"]
THINKING_TAGS += ["</think>", "[/THINK]", "<channel|>", "<|channel|>analysis<|message|>hm<|end|>"]


@pytest.mark.parametrize(("parser", "text"), TAGGED, ids=[type(p).__name__ for p, _ in TAGGED])
def test_thinking_tags_of_every_family_are_text_within_an_argument(parser, text):
    for tags in THINKING_TAGS:
        value = f"a {tags} b"
        call = ("write", {"text": value})
        assert of(parser, text.replace("VALUE", value)) == ([call], None, 0)


@pytest.mark.parametrize(
    ("parser", "text"), TAGGED[:7], ids=[type(p).__name__ for p, _ in TAGGED[:7]]
)
def test_a_cut_call_with_a_thinking_tag_is_malformed_in_every_family(parser, text):
    closing = parser.thinking_tags.closing
    cut = text.partition("VALUE")[0] + f"a {closing} b"
    assert of(parser, cut) == ([], None, 1)


EMPTY = ["null", '""', '" "', "{}", '"{}"', '"null"']  # what models write for no arguments
WITHOUT_ARGUMENTS = [
    (HermesParser(), '<tool_call>\n{"name": "now", "arguments": VALUE}\n</tool_call>'),
    (Llama3Parser(), '{"name": "now", "parameters": VALUE}'),
    (Llama3Parser(), '<|python_tag|>{"name": "now", "parameters": VALUE}'),
    (MistralParser(), '[TOOL_CALLS][{"name": "now", "arguments": VALUE}]'),
    (MistralParser(), "[TOOL_CALLS]now[ARGS]VALUE"),
    (NemotronParser(), '<TOOLCALL>[{"name": "now", "arguments": VALUE}]</TOOLCALL>'),
    (DeepSeekParser(), "<｜tool▁call▁begin｜>now<｜tool▁sep｜>VALUE<｜tool▁call▁end｜>"),
    (
        DeepSeekParser(),
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\nVALUE\n```<｜tool▁call▁end｜>",
    ),
    (
        KimiK2Parser(),
        "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>VALUE<|tool_call_end|>",
    ),
    (GptOssParser(), "<|channel|>commentary to=functions.now<|message|>VALUE<|call|>"),
    (PlainJsonParser(), '```json\n{"name": "now", "arguments": VALUE}\n```'),
]


@pytest.mark.parametrize(("parser", "text"), WITHOUT_ARGUMENTS)
def test_null_and_empty_text_are_no_arguments(parser, text):
    for value in EMPTY:
        assert of(parser, text.replace("VALUE", value)) == ([("now", {})], None, 0)
    zone = text.replace("VALUE", '"{\\"zone\\": \\"UTC\\"}"')  # an object as JSON text
    assert of(parser, zone) == ([("now", {"zone": "UTC"})], None, 0)
    for value in ("[]", "0", "false", '"no"', '"[1]"', '{"a": 1'):
        assert of(parser, text.replace("VALUE", value))[0] == []


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (HermesParser(), '<tool_call>\n{"name": "now"}\n</tool_call>'),
        (HermesParser(), '<tool_call>\n{"type": "function", "name": "now"}\n</tool_call>'),
        (Llama3Parser(), '<|python_tag|>{"name": "now"}'),
        (MistralParser(), '[TOOL_CALLS][{"name": "now", "id": "abcdefghi"}]'),
        (NemotronParser(), '<TOOLCALL>[{"name": "now"}]</TOOLCALL>'),
        (DeepSeekParser(), "<｜tool▁call▁begin｜>now<｜tool▁sep｜><｜tool▁call▁end｜>"),
        (
            DeepSeekParser(),
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n```<｜tool▁call▁end｜>",
        ),
        (
            KimiK2Parser(),
            "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|> <|tool_call_end|>",
        ),
        (
            GptOssParser(),
            "<|channel|>commentary to=functions.now <|constrain|>json<|message|><|call|>",
        ),
        (GemmaParser(), "<|tool_call>call:now<tool_call|>"),
        (GemmaParser(), "<|tool_call>call:now{}<tool_call|>"),
        (GlmParser(), "<tool_call>now</tool_call>"),
        (Qwen3CoderParser(), "<tool_call>\n<function=now>\n</function>\n</tool_call>"),
        (Qwen3CoderParser(), "<tool_call>\n<function=now>\n</tool_call>"),
        (
            MiniMaxM2Parser(),
            '<minimax:tool_call>\n<invoke name="now">\n</invoke></minimax:tool_call>',
        ),
    ],
)
def test_a_call_may_have_no_arguments_at_all(parser, text):
    assert of(parser, text) == ([("now", {})], None, 0)


def test_llamas_name_alone_is_a_call_of_an_offered_tool_and_an_answer_otherwise():
    tools = [{"type": "function", "function": {"name": "now"}}]
    assert of(Llama3Parser(), '{"name": "now"}', tools) == ([("now", {})], None, 0)
    assert of(Llama3Parser(), '{"name": "Bob"}', tools)[0] == []


def test_the_tokens_of_a_message_are_text_within_harmonys_arguments():
    value = "<|end|><|start|>assistant<|call|><|return|>"
    call = f'<|channel|>commentary to=functions.add<|message|>{{"a": "{value}"}}<|call|>'
    assert of(GptOssParser(), ANALYSIS + call + FINAL) == ([("add", {"a": value})], "hm", 0)


def test_llamas_tag_is_text_within_its_arguments():
    for before in ("", "<|python_tag|>", "So: <|python_tag|>"):
        text = before + '{"name": "add", "parameters": {"a": "<|python_tag|>{}"}}'
        assert of(Llama3Parser(), text) == ([("add", {"a": "<|python_tag|>{}"})], None, 0)


# --- qwen3_coder ---------------------------------------------------------------------------------


def typed(text, schema):
    defs = {
        "Zip": {"type": "string"},
        "Count": {"type": "integer"},
        "Loop": {"$ref": "#/$defs/Loop"},
    }
    properties = {} if schema is None else {"a": schema}
    tool = {"name": "f", "parameters": {"properties": properties, "$defs": defs}}
    call = f"<tool_call><function=f><parameter=a>\n{text}\n</parameter></function></tool_call>"
    reply = Qwen3CoderParser().parse(call, [{"type": "function", "function": tool}])
    return reply.tool_calls[0].arguments["a"]


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("7", {"type": "integer"}, 7),
        ("7", {"type": "string"}, "7"),
        ("7", {"type": "number"}, 7),
        ("7.5", {"type": "integer"}, "7.5"),
        ("seven", {"type": "integer"}, "seven"),
        ("true", {"type": "integer"}, "true"),
        ("true", {"type": "boolean"}, True),
        ("False", {"type": "boolean"}, False),
        ("None", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ("None", {"type": "string"}, "None"),
        ("red", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "red"),
        ("7", {"type": ["string", "integer"]}, 7),
        ("7", {"enum": ["7", "8"]}, "7"),
        ('{"b": [1]}', {"type": "object"}, {"b": [1]}),
        ('{"b": [1]}', {"type": "string"}, '{"b": [1]}'),
        ("[1, 2", {"type": "array"}, "[1, 2"),
        ("7", None, 7),
        ("a b", None, "a b"),
        ('"7"', None, '"7"'),
        ("7", {"$ref": "#/x"}, 7),
        ("7", "no schema", 7),
        ("007", {"$ref": "#/$defs/Zip"}, "007"),
        ("7", {"$ref": "#/$defs/Zip"}, "7"),
        ("7", {"$ref": "#/$defs/Count"}, 7),
        ("7", {"$ref": "#/$defs/Loop"}, 7),
        ("7", {"allOf": [{"$ref": "#/$defs/Zip"}, {"minLength": 1}]}, "7"),
        ("7", {"allOf": [{"type": ["string", "integer"]}, {"type": "string"}]}, "7"),
        ("7", {"anyOf": [{"$ref": "#/$defs/Zip"}, {"type": "null"}]}, "7"),
        ("null", {"anyOf": [{"$ref": "#/$defs/Zip"}, {"type": "null"}]}, None),
        ("null", {"type": "string", "nullable": True}, None),
        ("null", {"type": "string"}, "null"),
        ("7", {"const": "7"}, "7"),
        ("7", {"const": 7}, 7),
        ("1", {"enum": ["1", 2]}, "1"),
        ("2", {"enum": ["1", 2]}, 2),
        ("3", {"enum": [1, 2]}, 3),
        ("7", {"oneOf": [{"const": "7"}, {"type": "boolean"}]}, "7"),
        ("2026-11-28", {"type": ["string", "null"]}, "2026-11-28"),
        ("7", {"type": ["string", "null"]}, "7"),
        ("a\n\n<b>&lt;", {"type": "string"}, "a\n\n<b>&lt;"),
        ("a</parameter>b</function>", {"type": "string"}, "a</parameter>b</function>"),
    ],
)
def test_a_value_has_the_type_of_its_schema(text, schema, value):
    found = typed(text, schema)
    assert (type(found), found) == (type(value), value)


XML = "<tool_call>\n<function=add>\nBODY</tool_call>"
BLOCK = '<minimax:tool_call>\n<invoke name="add">\nBODY</minimax:tool_call>'
KEYS = "<tool_call>add\nBODY</tool_call>"
UNCLOSED = [
    (Qwen3CoderParser(), XML, "<parameter=s>\n1\n<parameter=i>\n2\n</parameter>\n</function>\n"),
    (Qwen3CoderParser(), XML, "<parameter=s>\n1\n</parameter>\n<parameter=i>\n2\n</function>\n"),
    (Qwen3CoderParser(), XML, "<parameter=s>\n1\n</parameter>\n<parameter=i>\n2\n</parameter>\n"),
    (Qwen3CoderParser(), XML, "<parameter=s>\n1\n<parameter=i>\n2\n</function>\n"),
    (Qwen3CoderParser(), XML, "<parameter=s>1<parameter=i>2</parameter></function>"),
    (
        GlmParser(),
        KEYS,
        "<arg_key>s</arg_key>\n<arg_value>1\n<arg_key>i</arg_key>\n<arg_value>2</arg_value>\n",
    ),
    (
        GlmParser(),
        KEYS,
        "<arg_key>s</arg_key>\n<arg_value>1</arg_value>\n<arg_key>i</arg_key>\n<arg_value>2\n",
    ),
    (
        MiniMaxM2Parser(),
        BLOCK,
        '<parameter name="s">1\n<parameter name="i">2</parameter>\n</invoke>\n',
    ),
    (
        MiniMaxM2Parser(),
        BLOCK,
        '<parameter name="s">1</parameter>\n<parameter name="i">2\n</invoke>\n',
    ),
    (
        MiniMaxM2Parser(),
        BLOCK,
        '<parameter name="s">1</parameter>\n<parameter name="i">2</parameter>\n',
    ),
]


@pytest.mark.parametrize(("parser", "form", "body"), UNCLOSED)
def test_a_missing_end_tag_swallows_neither_a_parameter_nor_a_call(parser, form, body):
    call, right = form.replace("BODY", body), ("add", {"s": "1", "i": 2})
    assert of(parser, call, TOOLS) == ([right], None, 0)
    assert of(parser, f"{call}\n{call}", TOOLS) == ([right, right], None, 0)


def test_a_tag_that_names_no_parameter_of_the_tool_is_text():
    value = "a\n<parameter=other>\nb"
    text = XML.replace("BODY", f"<parameter=s>\n{value}\n</parameter>\n</function>\n")
    assert of(Qwen3CoderParser(), text, TOOLS) == ([("add", {"s": value})], None, 0)


def test_a_schema_may_stand_behind_the_one_of_the_parameters():
    inner = {"properties": {"a": {"type": "string"}}}
    for parameters in (
        {"$ref": "#/$defs/A", "$defs": {"A": inner}},
        {"allOf": [{"properties": {"b": {}}}, inner]},
        {"type": "object", "additionalProperties": {"type": "string"}},
    ):
        tools = [{"function": {"name": "f", "parameters": parameters}}]
        text = "<tool_call><function=f><parameter=a>7</parameter></function></tool_call>"
        assert called(Qwen3CoderParser().parse(text, tools)) == [("f", {"a": "7"})]


@pytest.mark.parametrize("tools", [None, [], [{"function": {"name": "f"}}], [{"name": "g"}], [{}]])
def test_without_a_schema_a_value_is_what_it_reads_as(tools):
    text = "<tool_call><function=f><parameter=a>7</parameter></function></tool_call>"
    assert called(Qwen3CoderParser().parse(text, tools)) == [("f", {"a": 7})]


@pytest.mark.parametrize(
    "bad",
    [
        "<tool_call>\n<function=add>\n<parameter=a>\n1",
        "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>",
        "<tool_call>\n<function=add>\njunk\n</function>\n</tool_call>",
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function>"
        "</tool_call>",
        '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>',
    ],
)
def test_xml_that_is_no_call_stays_content(bad):
    good = "<tool_call>\n<function=stop>\n</function>\n</tool_call>"
    assert Qwen3CoderParser().parse(f"x {bad}") == ParsedReply(f"x {bad}", malformed=(bad,))
    assert called(Qwen3CoderParser().parse(f"{bad} {good}")) == [("stop", {})]


# --- llama3 --------------------------------------------------------------------------------------

LLAMA_ADD = '{"name": "add", "parameters": {"a": 1}}'


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (f" {LLAMA_ADD}\n", ""),
        (f"<|python_tag|>{LLAMA_ADD}", ""),
        (f"Let me see. <|python_tag|>{LLAMA_ADD}", "Let me see."),
        ('{"type": "function", "name": "add", "arguments": {"a": 1}}', ""),
    ],
)
def test_llamas_reply_is_one_call(text, content):
    assert Llama3Parser().parse(text) == ParsedReply(
        content, (ToolCall("call_0", "add", {"a": 1}),)
    )


@pytest.mark.parametrize(
    "text",
    [
        f"{LLAMA_ADD}; {LLAMA_ADD}",
        f"{LLAMA_ADD} and so on",
        '{"name": "add"}',
        '{"name": "add", "parameters": "1"}',
        '{"name": "add", "parameters": {}, "answer": 4}',
        "<|python_tag|>import math",
    ],
)
def test_what_is_not_one_call_of_llamas_is_content(text):
    assert Llama3Parser().parse(text) == ParsedReply(text, malformed=(text,))


@pytest.mark.parametrize("text", ['{"answer": 4}', f"Like this: {LLAMA_ADD}", "[1]", "4", ""])
def test_an_answer_in_json_is_no_malformed_call(text):
    assert Llama3Parser().parse(text) == ParsedReply(text)


# --- mistral -------------------------------------------------------------------------------------


def test_mistrals_two_forms_and_what_stands_around_them():
    text = 'Hm.[TOOL_CALLS]add[CALL_ID]abc123def[ARGS]{"a": 1}[TOOL_CALLS] sub {"b": 2}'
    reply = MistralParser().parse(text)
    assert (reply.content, called(reply)) == ("Hm.", [("add", {"a": 1}), ("sub", {"b": 2})])
    text = '[TOOL_CALLS] [{"name": "add", "arguments": "{\\"a\\": 1}"}, '
    text += '{"name": "sub", "arguments": {}}] done'
    reply = MistralParser().parse(text)
    assert (reply.content, called(reply)) == ("done", [("add", {"a": 1}), ("sub", {})])


@pytest.mark.parametrize(
    "bad",
    [
        "[TOOL_CALLS]",
        "[TOOL_CALLS][]",
        "[TOOL_CALLS]add[ARGS]",
        '[TOOL_CALLS]add[ARGS][{"a": 1}]',
        '[TOOL_CALLS][{"name": "add", "arguments": {}}, 3]',
        '[TOOL_CALLS][{"name": "add", "arguments": "no"}]',
        '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}',
        '[TOOL_CALLS]{"name": "add", "arguments": {}}',
    ],
)
def test_a_malformed_call_of_mistrals_stays_content(bad):
    assert MistralParser().parse(f"x {bad}") == ParsedReply(f"x {bad}", malformed=(bad,))
    assert called(MistralParser().parse(f"{bad}[TOOL_CALLS]stop[ARGS]{{}}")) == [("stop", {})]


def test_mistrals_thinking_stands_in_its_own_tags():
    text = '[THINK]hm[/THINK]Yes.[TOOL_CALLS]add[ARGS]{"a": 1}'
    reply = MistralParser.from_template("[THINK] [/THINK] [ARGS]").parse(text)
    assert (reply.reasoning, reply.content, called(reply)) == ("hm", "Yes.", [("add", {"a": 1})])
    assert MistralParser().parse(text).content == "[THINK]hm[/THINK]Yes."


# --- deepseek ------------------------------------------------------------------------------------


def test_deepseeks_calls_count_one_by_one():
    begin, end = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    add = f'{begin}function<｜tool▁sep｜>add\n```json\n{{"a": "```"}}\n```{end}'
    sub = f'{begin}sub<｜tool▁sep｜>{{"b": 2}}{end}'
    cut = f'{begin}sub<｜tool▁sep｜>{{"b"'
    text = f"So:<｜tool▁calls▁begin｜>{add}\n{sub}\n{cut}"
    assert DeepSeekParser().parse(text) == ParsedReply(
        content=f"So:\n\n{cut}",
        tool_calls=(ToolCall("call_0", "add", {"a": "```"}), ToolCall("call_1", "sub", {"b": 2})),
        malformed=(cut,),
    )


@pytest.mark.parametrize(
    "bad",
    [
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>add<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>add<｜tool▁sep｜>[1]<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜> <｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{} so<｜tool▁call▁end｜>",
    ],
)
def test_a_malformed_call_of_deepseeks_stays_content(bad):
    assert DeepSeekParser().parse(f"x {bad}") == ParsedReply(f"x {bad}", malformed=(bad,))


# --- gpt_oss -------------------------------------------------------------------------------------

ANALYSIS = "<|channel|>analysis<|message|>hm<|end|>"
FINAL = "<|channel|>final<|message|>Five."
HARMONY = GptOssParser().parse


def test_harmonys_channels_are_reasoning_content_and_calls():
    preamble = "<|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|>"
    call = (
        '<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>'
    )
    assert HARMONY(ANALYSIS + preamble + call) == ParsedReply(
        "Let me see.", (ToolCall("call_0", "add", {"a": 1}),), reasoning="hm"
    )
    assert HARMONY(f"{ANALYSIS}<|start|>assistant{FINAL}<|return|>") == ParsedReply(
        "Five.", reasoning="hm"
    )
    assert HARMONY("Five.") == HARMONY(FINAL) == HARMONY(f"{FINAL}<|end|>") == ParsedReply("Five.")


def test_harmonys_thinking_that_was_cut_is_content_and_not_malformed():
    assert HARMONY(ANALYSIS[:-7]) == ParsedReply(ANALYSIS[:-7])


@pytest.mark.parametrize(
    "bad",
    [
        '<|channel|>commentary to=functions.add<|message|>{"a": 1}',  # cut before its end
        '<|channel|>commentary to=functions.add<|message|>{"a": 1}<|end|>',
        "<|channel|>commentary to=functions.add<|message|>{}, {}<|call|>",
        "<|channel|>commentary to=functions.<|message|>{}<|call|>",
        "<|channel|>analysis to=python code<|message|>1+1<|call|>",
        "<|channel|>song<|message|>la<|end|>",
        "w<|channel|>final<|message|>Five.<|end|>",
        "<|channel|>final",
        "<|message|>",
        "<|start|>user<|message|>I am the user.<|end|>",
    ],
)
def test_a_message_that_harmony_does_not_know_stays_content(bad):
    assert HARMONY(bad) == ParsedReply(bad, malformed=(bad,))
    assert HARMONY(f"{bad}<|start|>assistant{FINAL}").content == f"{bad}\nFive."


# --- glm -----------------------------------------------------------------------------------------

GLM = GlmParser().parse
GLM_ADD = "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (GLM_ADD, [("add", {"a": 1})]),
        (GLM_ADD.replace("\n", ""), [("add", {"a": 1})]),  # GLM 4.7
        (f"{GLM_ADD}\n{GLM_ADD.replace('add', 'sub')}", [("add", {"a": 1}), ("sub", {"a": 1})]),
        ("<tool_call>stop\n</tool_call>", [("stop", {})]),
        ("<tool_call>\nstop</tool_call>", [("stop", {})]),
    ],
)
def test_glms_calls_have_line_breaks_or_none(text, calls):
    reply = GLM(f"Let me see.\n{text}\n")
    assert (reply.content, called(reply), reply.malformed) == ("Let me see.", calls, ())


def test_glms_values_have_the_types_of_their_schemas_and_keep_their_white_space():
    keys = ["s", "i", "b", "n", "l", "o"]
    values = [" 7\n<b>", "7", "true", "null", "[1]", '{"b": "\u00fc"}']
    pairs = (
        f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n"
        for k, v in zip(keys, values, strict=True)
    )
    [call] = GLM(f"<tool_call>add\n{''.join(pairs)}</tool_call>", TOOLS).tool_calls
    right = {"s": " 7\n<b>", "i": 7, "b": True, "n": None, "l": [1], "o": {"b": "\u00fc"}}
    assert call.arguments == right


@pytest.mark.parametrize(
    "bad",
    [
        GLM_ADD[:-13],  # cut
        GLM_ADD[:-25],  # cut within a value
        "<tool_call>add\n<arg_key>a</arg_key>\n</tool_call>",
        "<tool_call>add\n<arg_value>1</arg_value>\n</tool_call>",
        "<tool_call>add\na=1\n</tool_call>",
        "<tool_call>\n</tool_call>",
        '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>',
        GLM_ADD.replace("\n</tool", "<arg_key>a</arg_key><arg_value>2</arg_value></tool"),
    ],
)
def test_a_malformed_call_of_glms_stays_content(bad):
    assert GLM(f"x {bad}") == ParsedReply(f"x {bad}", malformed=(bad,))
    assert called(GLM(f"{bad} <tool_call>stop</tool_call>")) == [("stop", {})]


@pytest.mark.parametrize(
    ("family", "written", "variant"),
    [
        ("glm4moe", "<arg_key>", "<tool_sep><arg_key>"),  # Hunyuan 3
        ("qwen3_5_think", "<tool_call>", "<seed:tool_call>"),  # Seed-OSS
        ("qwen2_5", "<tool_call>", "<tool_calls>"),  # Apriel
    ],
)
def test_a_family_whose_parser_does_not_read_the_templates_calls_is_not_taken(
    family, written, variant
):
    tokenizer = chat_tokenizer(family)
    marker = "{# <function= <arg_key> <tool_call> #}"
    tokenizer.chat_template = tokenizer.chat_template.replace(written, variant) + marker
    template = ChatTemplate(tokenizer)
    assert detect_family(template) is None
    with pytest.raises(ValueError, match="no parser reads this chat template's form"):
        parser_for(template).opening("add")


def test_the_type_of_a_harmony_message_may_be_any_word():
    text = '<|channel|>final <|constrain|>JSON<|message|>{"x": 1}<|return|>'
    assert GptOssParser().parse(text) == ParsedReply('{"x": 1}')


# --- kimi_k2 -------------------------------------------------------------------------------------

KIMI = KimiK2Parser().parse


def kimi(call_id, arguments='{"a": 1}'):
    return f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


@pytest.mark.parametrize("call_id", ["functions.add:0", "functions.add:12", "add:0", "add"])
def test_kimis_calls_are_named_by_their_ids(call_id):
    assert called(KIMI(kimi(call_id))) == [("add", {"a": 1})]


def test_kimis_calls_count_one_by_one():
    begin, end = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    text = f"So:{begin}{kimi('functions.add:0')}\n{kimi('functions.my.sub:1', '{}')}{end}"
    reply = KIMI(text)
    assert (reply.content, called(reply)) == ("So:", [("add", {"a": 1}), ("my.sub", {})])
    cut = kimi("functions.sub:1")[:-25]
    reply = KIMI(f"{begin}{kimi('functions.add:0')}{cut}")
    assert (called(reply), reply.content, reply.malformed) == ([("add", {"a": 1})], cut, (cut,))


@pytest.mark.parametrize(
    "bad",
    [
        "<|tool_calls_section_begin|>",
        kimi("3"),
        kimi("functions.:0"),
        kimi(""),
        kimi("functions.add:0", "[1]"),
        kimi("functions.add:0", '{"a": 1} so'),
        "<|tool_call_begin|>functions.add:0<|tool_call_end|>",
        '<|tool_call_begin|>functions.add:0{"a": 1}<|tool_call_end|>',
    ],
)
def test_a_malformed_call_of_kimis_stays_content(bad):
    assert KIMI(f"x {bad}") == ParsedReply(f"x {bad}", malformed=(bad,))


# --- minimax_m2 ----------------------------------------------------------------------------------

MINIMAX = MiniMaxM2Parser().parse


def minimax(*invokes):
    return "<minimax:tool_call>\n" + "\n".join(invokes) + "\n</minimax:tool_call>"


INVOKE_ADD = '<invoke name="add">\n<parameter name="a">1</parameter>\n</invoke>'


def test_minimaxs_block_may_hold_several_calls():
    stop = '<invoke name="stop">\n</invoke>'
    reply = MINIMAX(f"Let me see.\n{minimax(INVOKE_ADD, stop)}\nDone.")
    assert reply.content == "Let me see.\n\nDone."
    assert called(reply) == [("add", {"a": 1}), ("stop", {})]
    assert called(MINIMAX(minimax(INVOKE_ADD).replace("\n", ""))) == [("add", {"a": 1})]


def test_minimaxs_values_have_the_types_of_their_schemas_and_keep_their_white_space():
    text = (
        '<invoke name="add"><parameter name="s"> 7\n</parameter><parameter name="i">7</parameter>'
    )
    [call] = MINIMAX(minimax(f"{text}</invoke>"), TOOLS).tool_calls
    assert call.arguments == {"s": " 7\n", "i": 7}


@pytest.mark.parametrize(
    "bad",
    [
        minimax(INVOKE_ADD)[:-22],  # cut
        minimax(INVOKE_ADD)[:-34],  # cut within the call
        minimax(),
        minimax("<invoke>\n</invoke>"),
        minimax(INVOKE_ADD, "so"),
        minimax(INVOKE_ADD, '<invoke name="sub">'),
        minimax('{"name": "add", "arguments": {"a": 1}}'),
        minimax(INVOKE_ADD.replace("</invoke>", '<parameter name="a">2</parameter></invoke>')),
    ],
)
def test_a_malformed_block_of_minimaxs_stays_content(bad):
    assert MINIMAX(f"x {bad}") == ParsedReply(f"x {bad}", malformed=(bad,))
    good = minimax('<invoke name="stop"></invoke>')
    assert called(MINIMAX(f"{bad}{good}")) == [("stop", {})]


# --- nemotron ------------------------------------------------------------------------------------

NEMOTRON = NemotronParser().parse


@pytest.mark.parametrize("arguments", ['{"a": "\u00fc"}', '"{\\"a\\": \\"\u00fc\\"}"'])
def test_nemotrons_list_may_hold_several_calls(arguments):
    add = f'{{"name": "add", "arguments": {arguments}}}'
    text = (
        f'<think>hm</think>So:\n<TOOLCALL>[{add}, {{"name": "stop", "arguments": {{}}}}]</TOOLCALL>'
    )
    reply = NEMOTRON(f"{text}\nDone.")
    assert (reply.reasoning, reply.content) == ("hm", "So:\n\nDone.")
    assert called(reply) == [("add", {"a": "\u00fc"}), ("stop", {})]


@pytest.mark.parametrize(
    "bad",
    [
        "<TOOLCALL>[]</TOOLCALL>",
        '<TOOLCALL>[{"name": "add", "arguments": {"a": 1}}]',  # cut
        '<TOOLCALL>[{"name": "add", "arguments": {"a": 1',
        '<TOOLCALL>{"name": "add", "arguments": {"a": 1}}</TOOLCALL>',
        '<TOOLCALL>[{"name": "add", "arguments": {}}, 3]</TOOLCALL>',
        '<TOOLCALL>[{"name": "add", "arguments": "no"}]</TOOLCALL>',
        '<TOOLCALL>[{"name": "add", "arguments": {}}] so</TOOLCALL>',
    ],
)
def test_a_malformed_list_of_nemotrons_stays_content(bad):
    assert NEMOTRON(f"x {bad}") == ParsedReply(f"x {bad}", malformed=(bad,))
    good = '<TOOLCALL>[{"name": "stop", "arguments": {}}]</TOOLCALL>'
    assert called(NEMOTRON(f"{bad}{good}")) == [("stop", {})]


# --- gemma ---------------------------------------------------------------------------------------

GEMMA = GemmaParser().parse


def gemma(arguments, name="add"):
    return f"<|tool_call>call:{name}{{{arguments}}}<tool_call|>"


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ("", {}),
        ("a:1", {"a": 1}),
        ('s:<|"|>two, {three}: "<b>"\n<|"|>', {"s": 'two, {three}: "<b>"\n'}),
        ('s:<|"|><|"|>', {"s": ""}),
        ("x:-0.5,y:1e-07", {"x": -0.5, "y": 1e-07}),
        ("b:true,c:false,n:null,m:None", {"b": True, "c": False, "n": None, "m": None}),
        ('l:[1,[],[<|"|>\u00fc<|"|>,null]],o:{}', {"l": [1, [], ["\u00fc", None]], "o": {}}),
        ('o:{k v:{l:[true]},<|"|>a:b<|"|>:2}', {"o": {"k v": {"l": [True]}, "a:b": 2}}),
        (" a : 1 ,\nb: [ 1 , 2 ] ", {"a": 1, "b": [1, 2]}),
    ],
)
def test_gemmas_values_are_jsons_but_for_strings_and_keys(arguments, value):
    assert called(GEMMA(gemma(arguments))) == [("add", value)]
    other = gemma(arguments).replace("<|tool_call>", "<start_function_call>")
    other = other.replace("<tool_call|>", "<end_function_call>").replace('<|"|>', "<escape>")
    assert called(GemmaParser.from_template("<start_function_call>").parse(other)) == [
        ("add", value)
    ]


def test_what_stands_around_gemmas_calls_is_reasoning_and_content():
    thought = "<|channel>thought\nI add.\n<channel|>"
    reply = GEMMA(f"{thought}Let me see.{gemma('a:1')}{gemma('', 'stop')} Done.")
    assert (reply.reasoning, reply.content) == ("I add.", "Let me see. Done.")
    assert called(reply) == [("add", {"a": 1}), ("stop", {})]
    assert GEMMA("I add.\n<channel|>Five.") == ParsedReply("Five.", reasoning="I add.")
    assert GEMMA("<|channel>thought\nI") == ParsedReply("<|channel>thought\nI")


@pytest.mark.parametrize(
    "bad",
    [
        gemma("a:1")[:-12],  # cut
        gemma('s:<|"|>two<|"|>')[:-14],
        gemma("a:two"),
        gemma('"a":1'),
        gemma("a:'two'"),
        gemma("a:1,"),
        gemma("a:1 b:2"),
        gemma("a:1,a:2"),
        gemma("a"),
        gemma("a:[1"),
        gemma("a:1}, {b:2"),
        gemma("a:1").replace("call:", ""),
        gemma("a:1", name=""),
        '<|tool_call>{"name": "add"}<tool_call|>',
    ],
)
def test_a_malformed_call_of_gemmas_stays_content(bad):
    assert GEMMA(f"x {bad}") == ParsedReply(f"x {bad}", malformed=(bad,))
    assert called(GEMMA(f"{bad}{gemma('', 'stop')}")) == [("stop", {})]
