"""The ready React agent: tools in, answer out."""

import asyncio
from types import SimpleNamespace

import pytest

from ajet import BaseJudge, ReactAgent, Task
from ajet.core.config.rollout import CompactionConfig
from ajet.core.rollout.request import RolloutRequest
from ajet.core.trajectory.limits import EpisodeTruncated
from ajet.core.workflow.registry import WorkflowFactory
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")


def call(name, arguments='{"a": 2, "b": 3}'):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


class One(BaseJudge):
    def compute_reward(self, workflow_task, workflow_output):
        return 1.0, True


async def run(kind, *replies, debug=True):
    endpoint = ScriptedEndpoint(TOKENIZER, lambda _, name: replies[int(name[-4:])])
    runner = episode_runner(kind, endpoint, TOKENIZER, One(), debug=debug)
    task = Task("t", "2+3?", init_messages=[{"role": "user", "content": "Hello."}])
    [group] = await runner.rollout(RolloutRequest([task], step=0, mode="eval", num_repeat=1))
    return group.trajectories[0]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def divide(a: int, b: int) -> float:
    """Divide."""
    raise ZeroDivisionError(f"{a}/0")


class Adder(ReactAgent):
    tools = [add, divide]
    system_prompt = "You add."
    max_turns = 3


def answers(turn):
    return [message["content"] for message in turn.messages if message["role"] == "tool"]


async def test_the_react_agent_calls_tools_until_it_answers():
    t = await run(Adder, call("add"), "It is 5.")
    assert (t.status, t.output.metadata) == ("ok", {"final_answer": "It is 5."})
    assert [m["content"] for m in t.turns[0].messages] == ["You add.", "Hello.", "2+3?"]
    assert answers(t.turns[1]) == ["5"]


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        (call("divide"), "Error: ZeroDivisionError: 2/0"),
        (call("subtract"), "Error: subtract is not a valid tool, try one of [add, divide]."),
        (call("add", '{"a": "two"}'), "Error invoking tool 'add'"),
    ],
)
async def test_a_failing_tool_answers_with_its_error_and_the_episode_goes_on(written, answer):
    t = await run(Adder, written, "I cannot.")
    assert t.status == "ok"
    assert answers(t.turns[1])[0].startswith(answer)


async def test_the_calls_of_a_reply_run_at_once_and_are_answered_in_their_order():
    both_run = asyncio.Barrier(2)

    class Slow(ReactAgent):
        async def wait(self, a: int, b: int) -> str:
            """Wait."""
            await both_run.wait()
            return str(a)

        def build_graph(self, model):
            from langchain.agents import create_agent

            return create_agent(model, [self.wait])

    two = call("wait", '{"a": 1, "b": 0}') + "\n" + call("wait", '{"a": 2, "b": 0}')
    t = await run(Slow, two, "done")
    assert answers(t.turns[1]) == ["1", "2"]


async def test_turns_beyond_its_own_limit_truncate_the_episode():
    t = await run(Adder, *["Well. " + call("add")] * 9)
    assert (t.status, len(t.turns)) == ("truncated", 3)
    assert t.output.metadata["final_answer"] == "Well."


async def test_a_limit_that_a_tool_meets_is_not_the_tools_error():
    class Asks(ReactAgent):
        def ask(self) -> str:
            """Ask the model."""
            raise EpisodeTruncated("no more calls")

        def build_graph(self, model):
            self.tools = [self.ask]
            return super().build_graph(model)

    with pytest.raises(EpisodeTruncated):
        await run(Asks, call("ask", "{}"), "never said")


async def test_a_conversation_beyond_the_context_is_compacted_and_a_calls_answer_stays_with_it():
    class Reader(ReactAgent):
        def read(self, page: int) -> str:
            """Read a page."""
            return f"Page {page}: {'x' * 150}"

        def build_graph(self, model):
            self.tools = [self.read]
            return super().build_graph(model)

    pages = [call("read", f'{{"page": {number}}}') for number in range(4)]
    replies = iter([*pages, "They are read."])

    def reply(prompt, _):
        asked = prompt.rpartition("user\n")[2]
        return "It has a page." if "Sum up." in asked else next(replies)

    endpoint = ScriptedEndpoint(TOKENIZER, reply)
    compaction = CompactionConfig(enable=True, at=1100, prompt="Sum up.", max_summary_tokens=40)
    rollout = SimpleNamespace(compaction=compaction)
    config = SimpleNamespace(ajet=SimpleNamespace(rollout=rollout))
    limits = {"max_prompt_length": 4000, "max_response_length_in_one_turn": 100}
    runner = episode_runner(Reader, endpoint, TOKENIZER, One(), config=config, **limits)
    request = RolloutRequest([Task("t", "Read.")], step=0, mode="train", num_repeat=1)
    [group] = await runner.rollout(request)
    [t] = group.trajectories
    assert (t.status, t.output.metadata["final_answer"]) == ("ok", "They are read.")
    summary, *_ = [number for number, turn in enumerate(t.turns) if turn.notes.is_summary]
    last = t.turns[summary].messages[-1]
    assert (last["role"], last["content"]) == ("tool", "Sum up.")
    shown = t.turns[summary + 1].messages
    roles = ["user", "assistant", "user", "assistant", "tool"]
    assert [message["role"] for message in shown] == roles
    assert shown[1]["content"] == "It has a page."
    assert shown[4]["content"].startswith(f"Page {summary - 1}:")
    kept = list(t.turns[summary - 1].completion.token_ids)
    ids = list(t.turns[summary + 1].completion.prompt_ids)
    assert kept in [ids[at : at + len(kept)] for at in range(len(ids))]


def test_a_row_may_name_it():
    task = Task("t", "q", metadata={"agent_name": "react_agent"})
    assert WorkflowFactory(None).class_for(task) is ReactAgent
