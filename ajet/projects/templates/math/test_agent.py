"""Tests the agent, its tool and the judge. The model's replies are given, so none is loaded."""

from pathlib import Path

from ajet.testing import play, tool_call

CONF = Path(__file__).parent / "train.yaml"
TASK = {"question": "Anna has 6 boxes of 7 eggs. How many eggs has Anna?", "answer": "42"}
CALL = tool_call("execute_python_code", code="print(6 * 7)")


def test_the_model_is_shown_what_its_tool_answered() -> None:
    episode = play(CONF, [CALL, r"\boxed{42}"], TASK)
    assert "<stdout>42" in str(episode.turns[1].messages[-1]["content"])


def test_a_right_answer_is_a_success() -> None:
    assert play(CONF, [CALL, r"\boxed{42}"], TASK).is_success


def test_a_wrong_answer_is_none() -> None:
    assert play(CONF, [CALL, r"\boxed{13}"], TASK).reward == 0


def test_an_answer_without_a_box_is_none() -> None:
    assert play(CONF, ["42"], TASK).reward == 0
