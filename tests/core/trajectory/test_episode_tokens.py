"""Promises 1 and 2 together: whatever an agent does to its conversations, the ids that it sampled
are the ids that are trained, each once, after the very prompt that the endpoint saw."""

import copy

from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import Completion
from ajet.core.inference.session import TokenSession
from ajet.core.inference.tool_parsers import parser_for
from ajet.core.trajectory.trie import timelines
from ajet.core.trajectory.turn import Turn
from tests.fakes import chat_tokenizer

TEMPLATES = {
    family: ChatTemplate(chat_tokenizer(family)) for family in ("qwen2_5", "qwen3", "llama3")
}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
CALL = [263, *b'{"name": "add", "arguments": {"a": 1}}', 264]
THINK = [265, *b"hm", 266]
EMOJI = "\N{GRINNING FACE}".encode()

TEXT = st.text(max_size=8) | st.sampled_from(["<|im_end|>", "<|eot_id|>\n", "the", "</think>"])
PIECES = st.sampled_from([CALL, CALL[:9], THINK, [*b" the"], list(EMOJI), list(EMOJI[:2]), [256]])
SAMPLED = st.lists(PIECES | st.lists(st.integers(0, 275), max_size=3), max_size=3)
FINISH = st.sampled_from(["stop", "stop", "stop", "length", "abort"])
TALK = st.integers(0, 3)  # which of the conversations, modulo how many there are
TRAINABLE = st.sampled_from([True, True, False])
ACTIONS = st.one_of(
    st.tuples(st.just("call"), TALK, SAMPLED, FINISH, TRAINABLE),
    st.tuples(st.just("step"), TALK, SAMPLED, FINISH, TRAINABLE, TEXT),
    st.tuples(st.just("step"), TALK, SAMPLED, FINISH, TRAINABLE, TEXT),
    st.tuples(st.just("add"), TALK, st.sampled_from(["user", "tool"]), TEXT),
    st.tuples(st.just("fork"), TALK, st.integers(1, 6)),
    st.tuples(st.just("edit"), TALK, st.integers(0, 6), TEXT),
    st.tuples(st.just("begin"), TEXT, TEXT, st.booleans()),
)


class Agent:
    """Carries out drawn actions on its conversations, as badly as agents may."""

    def __init__(self, template):
        self.template, self.parser = template, parser_for(template)
        self.session = TokenSession(template)
        self.talks = [([{"role": "user", "content": "q"}], TOOLS)]
        self.turns, self.prompts = [], []

    def do(self, action, *values):
        if action == "begin":
            system, question, with_tools = values
            messages = [
                {"role": "system", "content": system},
                {"role": "user", "content": question},
            ]
            self.talks.append((messages, TOOLS if with_tools else None))
        else:
            talk, *rest = values
            messages, tools = self.talks[talk % len(self.talks)]
            getattr(self, action)(messages, tools, *rest)

    def call(self, messages, tools, pieces, finish_reason, trainable):
        sampled = [token for piece in pieces for token in piece]
        sampled = [t for t in sampled if t not in self.template.stop_token_ids]
        if finish_reason == "stop":
            sampled.append(self.template.stop_token_ids[-1])
        prompt = self.session.prompt_for(messages, tools)
        logprobs = tuple(-1.0 - index for index in range(len(sampled)))
        completion = Completion(tuple(prompt.ids), tuple(sampled), logprobs, finish_reason, 0)
        reply = self.parsed(completion)
        self.session.record(copy.deepcopy(messages), tools, reply, completion)
        self.turns.append(Turn(completion, list(messages), tools, reply, trainable=trainable))
        self.prompts.append(prompt)
        messages.append(reply)

    def step(self, messages, tools, pieces, finish_reason, trainable, result):
        self.call(messages, tools, pieces, finish_reason, trainable)
        self.add(messages, tools, "tool", result)

    def parsed(self, completion):
        found = self.parser.parse(self.template.decode(completion.token_ids))
        reply = {"role": "assistant", "content": found.content}
        if found.reasoning:
            reply["reasoning_content"] = found.reasoning
        if found.tool_calls:
            reply["tool_calls"] = [
                {
                    "id": c.id,
                    "type": "function",
                    "function": {"name": c.name, "arguments": c.arguments},
                }
                for c in found.tool_calls
            ]
        return reply

    def add(self, messages, tools, role, text):
        messages.append({"role": role, "content": text})

    def fork(self, messages, tools, length):
        self.talks.append((copy.deepcopy(messages[:length]), tools))

    def edit(self, messages, tools, index, text):
        index %= len(messages)
        messages[index] = {**messages[index], "content": text}


@settings(deadline=None, max_examples=250)
@given(st.sampled_from(sorted(TEMPLATES)), st.lists(ACTIONS, max_size=14))
def test_sampled_ids_are_trained_once_each_after_the_prompt_that_was_seen(family, actions):
    agent = Agent(TEMPLATES[family])
    for action in actions:
        agent.do(*action)
    check_prompts(agent)
    check_timelines(agent.turns)


def check_prompts(agent):
    """A prompt begins with a whole recorded call, or is the template's own render."""
    before = set()
    for turn, prompt in zip(agent.turns, agent.prompts, strict=True):
        ids = tuple(prompt.ids)
        if prompt.continues:
            assert any(ids[: len(path)] == path for path in before)
            assert prompt.reason is None
        else:
            assert ids == tuple(agent.template.prompt_ids(turn.messages, turn.tools))
        before.add((*ids, *turn.completion.token_ids))


def check_timelines(turns):
    paths = timelines(turns)
    where = {span.turn_index: (path, span) for path in paths for span in path.spans}
    num_trained = 0
    for index, turn in enumerate(turns):
        if turn.trainable and turn.completion.token_ids:
            path, span = where[index]
            context = tuple(path.token_ids[: span.start].tolist())
            sampled = tuple(path.token_ids[span.start : span.stop].tolist())
            assert (context, sampled) == (turn.completion.prompt_ids, turn.completion.token_ids)
            assert path.loss_mask[span.start : span.stop].all()
            num_trained += len(sampled)
    assert sum(int(path.loss_mask.sum()) for path in paths) == num_trained


def test_a_long_tool_loop_is_one_timeline():
    """The actions above reach what they should: here is one that continues ten times."""
    for template in TEMPLATES.values():
        agent = Agent(template)
        for index in range(10):
            agent.do("call", 0, [CALL], "stop", True)
            agent.do("add", 0, "tool", f"result {index}")
        assert [prompt.continues for prompt in agent.prompts] == [False] + [True] * 9
        assert len(timelines(agent.turns)) == 1
