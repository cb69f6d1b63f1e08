"""A long answer is cut by tokens, between characters, without tokenizing all of it."""

import pytest

from ajet.agents.tool_agent import truncate
from ajet.core.errors import ConfigError
from tests.fakes import chat_tokenizer

TOKENIZER = chat_tokenizer("qwen2_5")


class Words:
    """`ModelTuner.encode` alone; `longest` is the longest text that it was asked about."""

    longest = 0

    def encode(self, text):
        self.longest = max(self.longest, len(text))
        return TOKENIZER.encode(text, add_special_tokens=False)


class NoWords:
    def encode(self, text):
        raise ConfigError("no token ids")


@pytest.mark.parametrize(
    ("side", "expected"),
    [
        ("left", "0123…(6 characters cut)"),
        ("right", "(6 characters cut)…6789"),
        ("middle", "01…(6 characters cut)…89"),
    ],
)
def test_the_side_that_is_named_stays(side, expected):
    assert truncate("0123456789", 4, side, Words()) == (expected, 6)


def test_a_text_within_the_limit_is_not_truncated():
    assert truncate("0123456789", 10, "middle", Words()) == ("0123456789", 0)
    assert truncate("", 1, "left", Words()) == ("", 0)
    assert truncate("the the", 2, "left", Words())[1] == 0  # two tokens, seven characters


@pytest.mark.parametrize("limit", range(1, 12))
@pytest.mark.parametrize("side", ["left", "middle", "right"])
def test_no_character_is_split_and_no_limit_passed(limit, side):
    text = "😀é中" * 3  # 4 bytes (the fake merges the first two), 2 and 3: 8 tokens
    shown, num_cut = truncate(text, limit, side, Words())
    kept = shown.replace(f"({num_cut} characters cut)", "").replace("…", "")
    assert "\ufffd" not in kept and len(kept) + num_cut == 9
    assert len(Words().encode(kept)) <= limit
    first, _, last = shown.partition(f"({num_cut} characters cut)")
    assert text.startswith(first.rstrip("…")) and text.endswith(last.lstrip("…"))


def test_fifty_megabytes_are_not_tokenized_whole():
    words = Words()
    shown, num_cut = truncate("7" * 50_000_000, 100, "middle", words)
    assert (len(shown), num_cut) == (100 + len("…(49999900 characters cut)…"), 49_999_900)
    assert words.longest <= 800


def test_a_chat_endpoint_takes_four_characters_for_a_token():
    assert truncate("x" * 100, 5, "left", NoWords()) == ("x" * 20 + "…(80 characters cut)", 80)
