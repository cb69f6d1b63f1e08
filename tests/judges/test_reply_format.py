"""A judging model's reply is read as it stands, or not at all."""

import pytest

from ajet.judges.reply_format import CriteriaFormat, MalformedReply, ScoresFormat

ONE, THREE = ScoresFormat(1, 0, 10), ScoresFormat(3, 0, 10)


@pytest.mark.parametrize(
    "reply",
    [
        '{"score": 7}',
        '{"reason": "a {brace} and \\"quotes\\"", "score": 7.0}',
        'Here it is:\n```json\n{"reason": "fine", "score": 7}\n```\nBye.',
        '<think>{"score": 1}? Or {"score": 2}?</think>{"score": 7}',
        '{"steps": {"score": 3}} and now {"score": 7}',
        '{"score": 7} That is, {"score": 7}.',
        '{broken {"score": 7}',
        "It is rather good.\n\nScore: 7",
        "**Score:** 7.0",
        "score = 7.",
        '{"scores": [7]}',
    ],
)
def test_one_score_is_read_from_json_or_from_its_line(reply):
    assert ONE.read(reply).values == (7.0,)


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("", "no JSON object with a score"),
        ("Seven out of ten.", "no JSON object with a score"),
        ("Score: 7/10", "no JSON object with a score"),
        ("Score: 7\nScore: 8", "several lines with scores"),
        ("<think>Score: 7", "no JSON object with a score"),
        ('{"score": "7"}', '"7" is not a number'),
        ('{"score": true}', "true is not a number"),
        ('{"score": null}', "null is not a number"),
        ('{"score": 11}', "11 is not from 0 to 10"),
        ('{"score": -0.1}', "-0.1 is not from 0 to 10"),
        ('{"score": NaN}', "NaN is not from 0 to 10"),
        ('{"score": Infinity}', "Infinity is not from 0 to 10"),
        ('{"score": 1e999}', "Infinity is not from 0 to 10"),
        (f'{{"score": 1{"0" * 400}}}', "is not from 0 to 10"),
        ('{"score": 7} or {"score": 8}', "contradict"),
        ('{"scores": [7, 8]}', "it has 2 scores, not 1"),
        ('{"a":' * 5000, "no JSON object with a score"),
        ("{" * 30_000, "no JSON object with a score"),
    ],
)
def test_a_reply_without_a_valid_score_is_malformed_with_a_reason(reply, problem):
    with pytest.raises(MalformedReply, match=problem):
        ONE.read(reply)


def test_the_line_does_not_mend_a_wrong_object():
    with pytest.raises(MalformedReply, match="11 is not"):
        ONE.read('{"score": 11}\nScore: 7')


def test_several_scores_keep_their_order_and_their_number():
    assert THREE.read('{"scores": [1, 2.5, 0], "reason": "so"}').values == (1.0, 2.5, 0.0)
    assert THREE.read('{"scores": [1, 2, 3], "reason": "so"}').reason == "so"
    assert THREE.read("Scores: 1, 2.5, 10").values == (1.0, 2.5, 10.0)
    for reply in ('{"scores": [1, 2]}', '{"score": 3}', "Scores: 1, 2, 3, 4", "Score: 1"):
        with pytest.raises(MalformedReply, match="not 3"):
            THREE.read(reply)
    with pytest.raises(MalformedReply, match="is not a number"):
        THREE.read('{"scores": [1, [2], 3]}')


def test_criteria_are_a_list_of_texts_of_the_number_asked_for():
    reply_format = CriteriaFormat(1, 2)
    assert reply_format.read('{"criteria": [" a ", "b"]}') == ("a", "b")
    assert reply_format.read("Sure:\n1. a\n2) b") == ("a", "b")
    for reply in ('{"criteria": []}', '{"criteria": ["a", "b", "c"]}', "1. a\n2. b\n3. c"):
        with pytest.raises(MalformedReply, match="not 1 to 2"):
            reply_format.read(reply)
    for reply in ('{"criteria": "a"}', '{"criteria": [{"a": 1}]}', '{"criteria": [" "]}'):
        with pytest.raises(MalformedReply, match="not a list of texts"):
            reply_format.read(reply)
    for reply in ("a, b", "2. b"):
        with pytest.raises(MalformedReply, match="no JSON object with criteria"):
            reply_format.read(reply)
