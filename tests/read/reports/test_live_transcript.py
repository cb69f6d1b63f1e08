"""What happens in an episode is printed when it happens, in lines."""

import io

from rich.console import Console

from ajet.core.inference.endpoint import Completion
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.trajectory.turn import Turn
from ajet.read.reports.transcript import LiveTranscripts

STOP = 0


class Letters:
    """One token is one byte of UTF-8."""

    stop_token_ids = (STOP,)

    def text_of(self, ids):
        return bytes(ids).decode(errors="replace")


def live_of(num_parallel=1):
    output = io.StringIO()
    console = Console(file=output, width=200)
    live = LiveTranscripts(console, Letters(), num_parallel=num_parallel)
    plan = WorkflowTask(Task("t-0", "q"), "e0", "g-0", 0, 0, "train", 0)
    episode = live.begin(plan)

    def new_lines():
        text = output.getvalue()
        output.seek(0)
        output.truncate()
        return [line.strip() for line in text.splitlines() if line.strip()]

    return live, episode, new_lines


def turn_of(text, reply, messages):
    ids = (*text.encode(), STOP)
    completion = Completion((1, 2), ids, (-1.0,) * len(ids), "stop", 0)
    return Turn(completion=completion, messages=messages, tools=None, reply=reply)


def test_messages_are_printed_before_the_model_answers_and_lines_as_they_are_sampled():
    live, episode, new_lines = live_of()
    assert new_lines() == ["begins    e0"]
    messages = [{"role": "user", "content": "How many?"}]
    episode.called(messages, None)
    assert new_lines() == ["user      How many?"]
    ids = list("I think\nit is 4 é!".encode())
    live.on_tokens("e0/0000", ids[:4])
    assert new_lines() == []
    live.on_tokens("e0/0000", ids[:8])
    assert new_lines() == ["assistant I think"]
    live.on_tokens("e0/0000", ids[:16])
    assert new_lines() == []  # the line may go on, and é is cut in two
    reply = {"role": "assistant", "content": "I think\nit is 4 é!"}
    episode.answered(0, turn_of(reply["content"], reply, messages))
    lines = new_lines()
    assert lines[0] == "it is 4 é!" and lines[1].startswith("turn 0, 2 tokens in, ")
    result = {"role": "tool", "content": "5"}
    episode.called([*messages, reply, result], None)
    assert new_lines() == ["tool      5"]


def test_a_line_without_end_is_broken_at_a_space():
    live, _, new_lines = live_of()
    new_lines()
    live.on_tokens("e0/0000", list(b"word " * 24))  # 120 characters
    assert [len(line.removeprefix("assistant ")) for line in new_lines()] == [99]


def test_a_long_reply_fills_each_row_and_no_row_ends_in_blanks():
    output = io.StringIO()
    live = LiveTranscripts(Console(file=output, width=40), Letters(), num_parallel=1)
    live.begin(WorkflowTask(Task("t-0", "q"), "e0", "g-0", 0, 0, "train", 0))
    live.on_tokens("e0/0000", list(b"word " * 12))
    # 30 columns are left of the role's ten: six words with a space after each.
    row = "word word word word word word"
    assert output.getvalue().splitlines() == ["begins    e0", f"assistant {row}", f"{'':10}{row}"]


def test_several_episodes_are_told_apart_by_their_task():
    _, episode, new_lines = live_of(num_parallel=2)
    episode.called([{"role": "user", "content": "q"}], None)
    assert new_lines() == ["t-0 begins    e0", "t-0 user      q"]
