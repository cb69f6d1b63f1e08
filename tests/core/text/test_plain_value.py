"""Any object becomes plain data of a bounded size, and any text can be shown on a terminal."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.core.record.run_log import run_log
from ajet.core.text.error_text import one_line
from ajet.core.text.plain_value import PlainLimits, plain_value, printable, uncut_plain_value
from tests.hostile_values import MAKERS, doubled

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(JSON)
def test_json_stays_as_it_is_and_is_copied(value):
    plain = plain_value(value)
    assert plain == value
    assert plain is not value or not isinstance(value, list | dict)


@pytest.mark.parametrize("name", MAKERS)
def test_any_value_becomes_json_in_utf_8(name):
    text = json.dumps(plain_value(MAKERS[name]()), ensure_ascii=False)
    assert json.loads(text.encode()) is not NotImplemented


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, {2}), [1, [2]]),
        ({1: 2, None: 3, (1, 2): 4}, {"1": 2, "null": 3, "[1, 2]": 4}),
        (np.arange(2), [0, 1]),
        (np.float32(0.5), 0.5),
        (10**6000, "<integer of 19932 bits>"),
        (b"a", "b'a'"),
        ("a\ud800", "a\ufffd"),
    ],
    ids=["tuple", "keys", "array", "number", "integer", "bytes", "surrogate"],
)
def test_what_json_does_not_have_is_written_as_what_is_nearest(value, plain):
    assert plain_value(value) == plain


def test_what_is_cut_is_named_where_it_was():
    limits = PlainLimits(depth=2, values=5, characters=4)
    assert plain_value([[[1]]], limits) == [["<list left out>"]]
    assert plain_value("abcdef", limits) == "abcd… [cut: 6 characters]"
    assert plain_value([1, 2, 3, 4, 5, 6], limits) == [1, 2, 3, 4, "<int left out>"]


def test_what_the_model_is_to_see_is_refused_rather_than_cut():
    with pytest.raises(ValueError, match="nested more than 100 deep"):
        uncut_plain_value(doubled(60))


def test_control_characters_are_spelled_out():
    assert printable("a\x1b[2J\x00\tb\nc\u202e") == "a\\x1b[2J\\x00\tb\nc\\u202e"
    assert one_line(ValueError("\x1b]0;owned\x07\ud800")) == "ValueError: \\x1b]0;owned\\x07\ufffd"


def test_the_run_log_takes_any_text(tmp_path, capsys):
    from loguru import logger

    with run_log(tmp_path / "run.log"):
        logger.warning("first: {}", "a\ud800\x00\x1b[2J")
    assert "first: a\ufffd\\x00\\x1b[2J" in (tmp_path / "run.log").read_text("utf-8")
    assert "Traceback" not in capsys.readouterr().err


def test_keys_stay_apart_where_the_first_value_has_used_the_limit_up():
    limits = PlainLimits(characters=5)
    assert plain_value({"one": "x" * 9, "two": "y"}, limits) == {
        "one": "xxxxx… [cut: 9 characters]",
        "two": "… [cut: 1 characters]",
    }
