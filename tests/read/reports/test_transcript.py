"""What a person reads of an episode."""

from dataclasses import replace

from rich.console import Console

from ajet.core.inference.endpoint import Completion
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory
from ajet.core.trajectory.turn import Turn, TurnNotes
from ajet.read.reports.transcript import transcript

ADD = {"type": "function", "function": {"name": "add"}}
QUESTION = {"role": "user", "content": "[bold]2+2[/bold]?"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c", "function": {"name": "add", "arguments": '{"code": "a = 2\\nprint(a)"}'}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "4"}
ANSWER = {"role": "assistant", "content": "It is 4."}


def turn(messages, reply, prompt, sampled, finish="stop"):
    completion = Completion((1,) * prompt, (2,) * sampled, (-0.5,) * sampled, finish, 0)
    return Turn(completion, messages, [ADD], reply)


def shown(trajectory) -> str:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(transcript(trajectory))
    return console.export_text()


def episode(**fields):
    task = Task("t-1", "2+2", metadata={"answer": "#### 4"})
    turns = (
        turn([QUESTION], CALL, 5, 3),
        turn([QUESTION, CALL, RESULT], ANSWER, 12, 2, "length"),
    )
    turns = fields.pop("turns", turns)
    plain = {"outcome": EpisodeStatus.OK, "reward": 1.0, "is_success": True}
    plain |= {"reward_breakdown": {"judge": 1.0}}
    plain |= {"output": WorkflowOutput(metadata={"final_answer": "4"})}
    return Trajectory(WorkflowTask(task, "e", "g-0", 0, 0, "train", 0), turns, **(plain | fields))


def test_each_message_is_shown_once_with_its_calls_and_tokens():
    text = shown(episode())
    assert text.count("[bold]2+2[/bold]?") == 1  # text, never markup
    assert text.count("→ add") == 1 and "a = 2\n" not in text.split("→ add")[0]
    assert "turn 0, 5 tokens in, 3 out (stop), mean logprob -0.500" in text
    assert "turn 1, 12 tokens in, 2 out (length)" in text
    assert "t-1  ok  reward 1" in text and "expected  #### 4" in text
    assert "1 (judge 1), success" in text and "5 tokens sampled in 2 turns, 5 trainable" in text


def test_what_a_reply_answers_is_shown_though_it_was_said_before():
    wall = {"role": "user", "content": "a wall"}
    turns = (turn([wall], ANSWER, 5, 3), turn([wall, ANSWER, wall], ANSWER, 12, 2))
    assert shown(episode(turns=turns)).count("a wall") == 2


def test_code_in_a_call_keeps_its_lines():
    lines = [line.strip("│ ") for line in shown(episode()).splitlines()]
    at = lines.index("code:")
    assert lines[at + 1 : at + 3] == ["a = 2", "print(a)"]


def test_a_failed_episode_says_why():
    text = shown(
        episode(
            outcome=EpisodeStatus.AGENT_ERROR,
            reward=None,
            is_success=None,
            output=None,
            failure="ValueError: bad move (workflow.py:31)",
        )
    )
    assert "agent_error  reward none" in text and "ValueError: bad move (workflow.py:31)" in text


def test_a_malformed_reply_is_shown_with_the_reason():
    first, second = episode().turns
    bad = replace(second, notes=TurnNotes(malformed={"nonsense": "U+FFFD 2x"}))
    words = shown(episode(turns=(first, bad))).replace("│", " ").split()
    assert "malformed, nonsense: U+FFFD 2x" in " ".join(words)


def test_the_reward_of_a_turn_is_below_its_reply():
    rewarded = replace(turn([QUESTION], ANSWER, 5, 3), reward=-0.1)
    assert "mean logprob -0.500, reward -0.1" in shown(episode(turns=(rewarded,)))
