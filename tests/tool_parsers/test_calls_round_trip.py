"""Calls that the real templates write are read back, whatever their arguments hold.

Text of arguments is built of every marker of every family: the special tokens of all tokenizers,
the tags of all parsers and of thinking. What a family's form cannot hold is listed in AMBIGUOUS
with the reason, and nothing else is left out.
"""

import json
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import Completion
from ajet.core.trajectory.reply_reader import ReplyReader
from ajet.core.trajectory.turn import TurnNotes
from ajet.tool_parsers import PARSERS, detect_family, parser_for
from ajet.tool_parsers.plain_json import PlainJsonParser
from tests.fakes import FAMILY_CALL, FAMILY_EOS, ONE_CALL, chat_tokenizer, reply_ids

FAMILIES = sorted(FAMILY_CALL)
TEMPLATES = {family: ChatTemplate(chat_tokenizer(family)) for family in FAMILY_EOS}
READERS = {
    family: ReplyReader(TEMPLATES[family], parser_for(TEMPLATES[family])) for family in FAMILIES
}
FORM = {family: detect_family(TEMPLATES[family]) for family in FAMILIES}
THINKS = ["gemma4_v5", "glm4moe", "gptoss", "minimax_m2", "nemotron_3_nano"]
THINKS += ["qwen3", "qwen3_5_think", "qwen3_6", "qwen3_8"]
QUESTION = [{"role": "user", "content": "q"}]
PARAMETERS = {
    "type": "object",
    "properties": {
        "s": {"type": "string"},
        "r": {"$ref": "#/$defs/Text"},
        "i": {"type": "integer"},
        "x": {"type": "number"},
        "b": {"type": "boolean"},
        "n": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "l": {"type": "array"},
        "o": {"type": "object"},
    },
    "$defs": {"Text": {"allOf": [{"type": "string"}]}},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": PARAMETERS}}
    for name in ("add", "sub")
]

TAGS = ["<tool_call>", "</tool_call>", "<think>", "</think>", "[THINK]", "[/THINK]"]
TAGS += ["<function=", "<function=add>", "</function>", "<parameter=", "<parameter=t>"]
TAGS += ["</parameter>", '<parameter name="t">', '<invoke name="add">', "</invoke>"]
TAGS += ["<|channel>thought", "<TOOLCALL>", "</TOOLCALL>", "```json\n", "\n```", "functions.add:0"]
TAGS += ['{"name": "add", "arguments": {}}', "call:add{", "to=functions.add", "<escape>"]
TOKENS = {
    token.content
    for template in TEMPLATES.values()
    for token in template.tokenizer.added_tokens_decoder.values()
}
OF_PARSERS = {
    token for factory in PARSERS.values() for token in factory.from_template("").special_tokens
}
MARKERS = sorted(TOKENS | OF_PARSERS | set(TAGS))
PLAIN = ["\n", "\n\n", " ", '"', "'", '\\"', "\\", "\\n", "{", "}", '"}', "[", "]", "", ",", ":"]
PLAIN += [
    "7",
    "007",
    "1e5",
    "true",
    "null",
    "None",
    "NaN",
    '{"a": 1}',
    "[1]",
    "é",
    "日本",
    "😀",
    "\t",
]

KEY = "|".join(PARAMETERS["properties"])
AMBIGUOUS = {  # by parser: what an argument cannot hold, and why
    "qwen3_coder": {
        "XML without escapes: the end of a value and another tag of the call": (
            r"</parameter>\s*(<parameter=|</function>|</tool_call>)"
        ),
        "a line that begins another parameter, which ends a value without its end tag": (
            rf"(^|\n)<parameter=({KEY})>\n"
        ),
        "the end of a call, and the beginning of another": (
            r"(?s)</function>\s*</tool_call>.*<tool_call>\s*<function="
        ),
    },
    "minimax_m2": {
        "XML without escapes: the end of a value and another tag of the block": (
            r"</parameter>\s*(<parameter name=|</invoke>|<invoke name=|</minimax:tool_call>)"
        ),
        "the tag that begins another parameter, which ends a value without its end tag": (
            rf'<parameter name="({KEY})">'
        ),
        "the end of a call, and the beginning of another": (
            r'(?s)</invoke>\s*(<invoke name=|</minimax:tool_call>).*<invoke name="'
        ),
    },
    "glm": {
        "XML without escapes: the end of a value and another tag of the call": (
            r"</arg_value>\s*(<arg_key>|</tool_call>)"
        ),
        "the tags that begin another parameter, which end a value without its end tag": (
            rf"<arg_key>({KEY})</arg_key>\s*<arg_value>"
        ),
        "the end of a call, and the beginning of another": (
            r"(?s)</tool_call>.*<tool_call>\s*[^\s<>{}]+\s*(<arg_key>|</tool_call>)"
        ),
    },
}
UNQUOTED_KEYS = "gemma"  # it writes the keys of objects without quotation marks or escapes


def why_ambiguous(form, arguments):
    """Returns why the family's form cannot hold these arguments, or None if it can."""
    for value in arguments.values():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for reason, pattern in AMBIGUOUS.get(form, {}).items():
            if re.search(pattern, text):
                return reason
    if form == UNQUOTED_KEYS and not keys_are_words(arguments):
        return "keys are written without quotation marks or escapes"
    return None


def keys_are_words(value):
    if isinstance(value, dict):
        return all(re.fullmatch(r"\w+", key) for key in value) and keys_are_words([*value.values()])
    return not isinstance(value, list) or all(map(keys_are_words, value))


def read_back(family, asked, thinking=None):
    """Writes the calls with the family's template, and reads them as the recorder does."""
    template = TEMPLATES[family]
    calls = [
        {"id": f"call{i}0000", "type": "function", "function": {"name": n, "arguments": a}}
        for i, (n, a) in enumerate(asked)
    ]
    reply = {"role": "assistant", "content": "", "tool_calls": calls}
    if thinking is not None:
        reply["reasoning_content"] = thinking
    results = [{"role": "tool", "content": "5", "tool_call_id": call["id"]} for call in calls]
    ids = reply_ids(template, QUESTION, TOOLS, reply, *results)
    prompt = tuple(template.prompt_ids(QUESTION, TOOLS))
    return read(family, Completion(prompt, tuple(ids), (0.0,) * len(ids), "stop", 0))


def read(family, completion):
    decoded = READERS[family].read(0, completion, TOOLS, TurnNotes())
    message, parsed = decoded.message, decoded.parsed
    calls = [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls", ())
    ]
    return calls, message.get("reasoning_content"), parsed.malformed


@pytest.mark.parametrize("family", FAMILIES)
def test_every_marker_of_every_family_is_text_within_an_argument(family):
    thinking = "hm" if family in THINKS else None
    for marker in MARKERS:
        text = f"a {marker} b\n{marker}\n"
        nested = {"l": [marker, {"k": text}], "o": {"k": {"k": [marker]}}}
        asked = [("add", {"s": marker, "r": text, **nested})]
        assert why_ambiguous(FORM[family], asked[0][1]) is None  # it takes several markers
        assert read_back(family, asked, thinking) == (asked, thinking, ())


TEXT = st.lists(
    st.sampled_from(MARKERS)
    | st.sampled_from(PLAIN)
    | st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=5),
    max_size=5,
).map("".join)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(TEXT, inner, max_size=3)
        | st.dictionaries(st.from_regex(r"\A[a-z]{1,4}\Z"), inner, max_size=3)
    ),
    max_leaves=6,
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "s": TEXT,
        "r": TEXT,
        "i": st.integers(),
        "x": st.floats(allow_nan=False, allow_infinity=False),
        "b": st.booleans(),
        "n": st.none() | st.integers(),
        "l": st.lists(JSON, max_size=2),
        "o": st.dictionaries(TEXT, JSON, max_size=2)
        | st.dictionaries(st.from_regex(r"\A[a-z]{1,4}\Z"), JSON, max_size=2),
    },
)
ASKED = st.lists(st.tuples(st.sampled_from(["add", "sub"]), ARGUMENTS), min_size=1, max_size=3)
# What closes thinking is the one thing that thinking cannot hold.
THOUGHT = st.lists(st.sampled_from(["hm", "I add.", "\n", "<tool_call>", "é"]), max_size=4).map(
    "".join
)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40)
@given(ASKED, THOUGHT)
def test_calls_that_a_template_writes_are_read_back(family, asked, thought):
    """Several in one reply, where the family has them, after thinking, where it has that."""
    asked = asked[:1] if family in ONE_CALL else asked
    assume(not any(why_ambiguous(FORM[family], arguments) for _, arguments in asked))
    # Without thinking some templates begin a reply otherwise than the prompt does.
    thinking = (thought if thought.strip() else "hm") if family in THINKS else None
    calls, reasoning, malformed = read_back(family, asked, thinking)
    assert (calls, malformed) == (asked, ())
    assert (reasoning or "").strip() == (thinking or "").strip()


@settings(max_examples=40)
@given(ASKED)
def test_calls_in_plain_json_are_read_back(asked):
    fences = [
        f"```json\n{json.dumps({'name': name, 'arguments': arguments}, indent=2)}\n```"
        for name, arguments in asked
    ]
    parsed = PlainJsonParser().parse("\n".join(fences), TOOLS)
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == asked
    assert (parsed.content, parsed.malformed) == ("", ())


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("qwen3_coder", "</parameter>\n</function>"),
        ("qwen3_coder", "a\n<parameter=s>\nb"),
        ("qwen3_coder", "</function></tool_call> <tool_call><function="),
        ("minimax_m2", "</parameter></invoke>"),
        ("minimax_m2", 'a<parameter name="s">b'),
        ("minimax_m2", '</invoke></minimax:tool_call><invoke name="'),
        ("glm", "</arg_value></tool_call>"),
        ("glm", "<arg_key>s</arg_key><arg_value>"),
        ("glm", "</tool_call><tool_call>stop</tool_call>"),
    ],
)
def test_what_is_listed_as_ambiguous_cannot_be_read_back(form, text):
    """A reason that no longer holds has to leave the list."""
    family = next(family for family in FAMILIES if FORM[family] == form)
    asked = [("add", {"s": text, "r": "x"})]
    assert why_ambiguous(form, asked[0][1]) is not None
    assert read_back(family, asked)[0] != asked
