"""Runs the agent with a reply that is given, so no model is loaded."""

from pathlib import Path

from ajet.testing import play

CONF = Path(__file__).parent / "train.yaml"
TASK = {"question": "What is 6 times 7?", "answer": "42"}


def test_the_agent_answers_and_is_judged() -> None:
    # FILL IN: what the model says on the way; ajet.testing.tool_call(name, …) calls a tool.
    episode = play(CONF, ["The answer is 42"], TASK)
    assert "6 times 7" in str(episode.turns[0].messages)
    assert episode.is_success


if __name__ == "__main__":
    test_the_agent_answers_and_is_judged()
    print("ok: the agent answers and is judged")
