"""What the checks of malformed replies call broken, and what they must let pass."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.core.errors import ConfigError
from ajet.core.trajectory.malformed import CHECKS, CheckedReply, malformed
from ajet.tool_parsers import HermesParser

ORDINARY = {
    "mathematics": "π ≤ 4, √2 ≈ 1.414, ∑ᵢ xᵢ² ∈ ℝ, ∀ε>0 ∃δ: |x−y|<δ ⇒ |f(x)−f(y)|<ε, 𝔼[X], ½",
    "latin": "café naïve Ærøskøbing Łódź İstanbul Việt Nam čeština ʻokina “quotes” — … ‰ €",
    "decomposed": "cafe\u0301 a\u0306\u0301",
    "cyrillic": "Привет, мир! Ёж. Ґанок. Србија",
    "greek": "Ελληνικά: ἀρχή",
    "chinese": "你好，世界。「引号」《书》　全角　２００４年 𠮷野家 㐂",
    "japanese": "こんにちは、カタカナ、日本語。ﾊﾝｶｸ 〜 ㍿",
    "korean": "안녕하세요 한국어 조합: 한",
    "arabic": "مرحبا بالعالم، ١٢٣ \u200fRTL\u200e",
    "hebrew": "שָׁלוֹם עולם",
    "devanagari": "नमस्ते क्षत्रिय \u200d\u200c",
    "thai": "สวัสดีชาวโลก",
    "rare": "አማርኛ ქართული ᏣᎳᎩ ᠮᠣᠩᠭᠣᠯ 𒀭 𐎠𐎿 ⠃⠗⠇",
    "emoji": "👍🏽 👩‍👩‍👧 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ❤️ 🇫🇷 🫠 \U0001fae9",
    "byte order mark, soft hyphen": "\ufeffso\u00adft\u00a0space\u2028line",
    "white space": "a\tb\r\nc\x0cd\x85e\n\n\n",
    "table": "| a | b |\n|---|---|\n" + "| 0 | 0 |\n" * 300,
    "rule": "=" * 3000 + "\n" + "─" * 3000,
    "pixel art": ("#" + "." * 60 + "#\n") * 60 + (" " * 79 + "\n") * 60,
    "boxes": "┌──┐\n│  │\n└──┘\n" * 200 + "█" * 2500,
    "long number": "10^4000 = 1" + "0" * 4000,
    "digits": "".join(str(i * i % 97) for i in range(4000)),
    "matrix": "[" + "0, " * 1500 + "0]",
    "code": 'print("hello, world")\n' * 60,
    "list": "\n".join(f"{i}. the same words again and again" for i in range(400)),
    "laughter": "ha" * 200,
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_text_of_any_kind_is_not_nonsense(name):
    assert malformed(CheckedReply(ORDINARY[name]), ["nonsense"]) == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("The sum is \ufffd\ufffd5", "U+FFFD 2x"),
        ("a\x00b", "U+0000 1x"),
        ("\x1b[31mred", "U+001B 1x"),
        ("caf\x82", "U+0082 1x"),
        ("icon \ue0b0", "U+E0B0 1x"),
        ("\U000f1234 \uffff \ud83d", "U+F1234 1x, U+FFFF 1x, U+D83D 1x"),
        ("\U00050000", "U+50000 1x"),
    ],
)
def test_characters_that_no_text_has_are_nonsense(text, reason):
    assert malformed(CheckedReply(text), ["nonsense"]) == {"nonsense": reason}


def test_one_odd_character_in_500_is_the_limit():
    assert not malformed(CheckedReply("\ufffd" + "ab" * 250), ["nonsense"])  # 1 in 501
    assert malformed(CheckedReply("\ufffd" + "ab" * 249), ["nonsense"])  # 1 in 499


def test_a_character_that_the_conversation_shows_is_not_held_against_the_reply():
    shown = [{"role": "tool", "content": [{"type": "text", "text": "log: \ufffd\x1b"}]}]
    assert not malformed(CheckedReply("it printed \ufffd\x1b", messages=shown), ["nonsense"])
    assert malformed(CheckedReply("it printed \x07", messages=shown), ["nonsense"])
    tools = [{"function": {"name": "f", "description": "\ue0b0"}}]
    assert not malformed(CheckedReply("\ue0b0", tools=tools), ["nonsense"])


def test_half_a_character_at_a_cut_is_not_the_models_fault():
    assert not malformed(CheckedReply("the answer is \ufffd", "length"), ["nonsense"])
    assert malformed(CheckedReply("the answer is \ufffd", "stop"), ["nonsense"])


def test_words_that_go_round_for_two_thousand_characters_are_nonsense():
    found = malformed(CheckedReply("So: " + "the " * 500), ["nonsense"])
    assert found == {"nonsense": "' the' again and again, 2001 characters long"}
    assert not malformed(CheckedReply("So: " + "the " * 499), ["nonsense"])
    sentence = "Wait, let me think about this once more. "  # 41 characters
    assert malformed(CheckedReply(sentence * 49 + "Done."), ["nonsense"])


@pytest.mark.parametrize("cycle", ["0", "!", "\n", "好的", "ha ", "Wait, let me think. ", "|---"])
def test_a_reply_that_was_cut_while_it_went_round_is_nonsense(cycle):
    tail = cycle * (320 // len(cycle))
    assert malformed(CheckedReply("x = " + tail, "length"), ["nonsense"])
    assert not malformed(CheckedReply("x = " + tail, "stop"), ["nonsense"])
    assert not malformed(CheckedReply("x = " + tail + "and so on", "length"), ["nonsense"])
    assert not malformed(CheckedReply("x = " + tail[:290], "length"), ["nonsense"])


ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a"],
        },
    },
}


def call(text):
    return f"Let me see.\n<tool_call>\n{text}\n</tool_call>"


def wrong_toolcall(text, tools=(ADD,)):
    reply = CheckedReply(text, parsed=HermesParser().parse(text), tools=tools)
    return malformed(reply, ["wrong_toolcall"]).get("wrong_toolcall")


@pytest.mark.parametrize(
    "text",
    [
        "No call at all, but <b>tags</b>.",
        call('{"name": "add", "arguments": {"a": 1}}'),
        call('{"name": "add", "arguments": {"a": 1, "b": -2}}'),
        call('{"name": "add", "arguments": {"a": 1, "note": "é"}}'),
    ],
)
def test_a_call_that_fits_its_tool_is_right(text):
    assert wrong_toolcall(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            call('{"name": "add", "arguments": {"a": 1'),
            "not a call that can be read: "
            "'<tool_call>\\n{\"name\": \"add\", \"arguments\": {\"a\": 1\\n</tool_cal…'",
        ),
        ("<tool_call>", "not a call that can be read: '<tool_call>'"),
        (call('{"name": "sub", "arguments": {}}'), "no tool 'sub' was offered, but add"),
        (call('{"name": "add", "arguments": {"b": 2}}'), "add: 'a' is a required property"),
        (
            call('{"name": "add", "arguments": {"a": "1"}}'),
            "add: ['a']: '1' is not of type 'integer'",
        ),
        (
            call('{"name": "add", "arguments": {"a": 1}}') + call('{"name": "add"}'),
            "add: 'a' is a required property",
        ),
    ],
)  # fmt: skip
def test_a_call_that_no_offered_tool_takes_is_wrong(text, reason):
    assert wrong_toolcall(text) == reason


def test_a_call_where_no_tool_was_offered_is_wrong():
    text = call('{"name": "add", "arguments": {"a": 1}}')
    assert wrong_toolcall(text, tools=()) == "no tool 'add' was offered, but none"


def test_a_tool_without_parameters_takes_any_arguments():
    bare = {"type": "function", "function": {"name": "add"}}
    assert wrong_toolcall(call('{"name": "add", "arguments": {"x": 1}}'), tools=(bare,)) is None


def mistake_in(schema):
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    with pytest.raises(ConfigError) as error:
        wrong_toolcall(call('{"name": "f", "arguments": {}}'), tools=(tool,))
    return str(error.value)


def test_a_schema_that_is_none_is_the_users_mistake():
    expected = "tool 'f': its parameters are no JSON schema: 'dict' is not valid"
    assert mistake_in({"type": "dict"}).startswith(expected)


def test_what_a_schema_refers_to_is_never_fetched(tmp_path):
    (tmp_path / "schema.json").write_text("{}")
    address = (tmp_path / "schema.json").as_uri()
    assert mistake_in({"$ref": address}) == f"tool 'f': its parameters refer to {address!r}"


@pytest.mark.parametrize(
    "text",
    [
        "<think>I add.</think>\n```python\nprint(2 + 3)\n```",
        "\n<think>\na\n\nb `x` ```y```\n</think>\n\n```python\ns = 'π'\n\nprint(s, '```')\n```\n",
        "the template wrote the opening</think>```python\n```",
    ],
)
def test_thinking_and_then_one_block_of_python_is_format_type_1(text):
    assert malformed(CheckedReply(text), ["format_type_1"]) == {}


@pytest.mark.parametrize(
    "text",
    [
        "print(2 + 3)",
        "<think>a</think>",
        "```python\nprint(1)\n```",
        "Sure. <think>a</think> then\n```python\n1\n```",
        "<think>a</think>\n```python\n1\n```\nThat is all.",
        "<think>a</think>\n```python\n1\n```\n```python\n2\n```",
        "<think>a</think><think>b</think>\n```python\n1\n```",
        "<think>a</think>\n```\n1\n```",
        "<think>a</think>\n```python\n1",
        "</think><think>\n```python\n1\n```",
    ],
)
def test_anything_else_is_not(text):
    assert list(malformed(CheckedReply(text), ["format_type_1"])) == ["format_type_1"]


def test_checks_do_not_change_one_another():
    """In AgentJet `non_ascii` beside `nonsense` turned off what it names."""
    text = "café \ufffd"
    assert list(malformed(CheckedReply(text), ["nonsense", "non_ascii"])) == [
        "nonsense",
        "non_ascii",
    ]
    assert list(malformed(CheckedReply("café"), list(CHECKS))) == ["format_type_1", "non_ascii"]


@settings(max_examples=100)
@given(st.text(max_size=200) | st.text(alphabet="<tool_call>{}\"'`\n", max_size=400))
def test_no_text_makes_a_check_fail_itself(text):
    for finish in ("stop", "length"):
        malformed(CheckedReply(text, finish, HermesParser().parse(text), [ADD]), list(CHECKS))


@pytest.mark.parametrize("seed", [0, 1])
def test_a_cycle_is_repeated_without_end_from_its_eighth_time_on(seed):
    letters = random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz", k=256)  # the longest cycle
    cycle = "".join(letters)
    assert not malformed(CheckedReply((cycle * 8)[:-1]), ["nonsense"])  # 2,047 characters
    assert malformed(CheckedReply(cycle * 8), ["nonsense"])
