"""Promises 1 and 2 together: whatever an agent does to its conversations, the ids that it sampled
are the ids that are trained, each once, after the very prompt that the endpoint saw."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.core.errors import ModelError
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import Completion
from ajet.core.inference.session import TokenSession
from ajet.core.trajectory.samples import timelines
from ajet.core.trajectory.turn import Turn
from ajet.tool_parsers import parser_for
from tests.fakes import FAMILY_CALL, FAMILY_EOS, chat_tokenizer

TOKENIZERS = {family: chat_tokenizer(family) for family in FAMILY_EOS}
TEMPLATES = {family: ChatTemplate(tokenizer) for family, tokenizer in TOKENIZERS.items()}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
CALLS = {
    family: TEMPLATES[family].encode(FAMILY_CALL.get(family, FAMILY_CALL["qwen2_5"]))
    for family in TEMPLATES
}
THINK = [265, *b"hm", 266]
EMOJI = "\N{GRINNING FACE}".encode()

TEXT = st.text(max_size=8) | st.sampled_from(["<|im_end|>", "<|eot_id|>\n", "the", "</think>"])
PIECES = st.sampled_from(
    ["call", "call", "half", THINK, [*b" the"], list(EMOJI), list(EMOJI[:2]), [256]]
)
SAMPLED = st.lists(PIECES | st.lists(st.integers(0, 288), max_size=3), max_size=3)
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

    def __init__(self, family):
        template = TEMPLATES[family]
        self.template, self.parser = template, parser_for(template)
        self.num_tokens = len(TOKENIZERS[family])
        self.pieces = {"call": CALLS[family], "half": CALLS[family][:9]}
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
        try:
            prompt = self.session.prompt_for(messages, tools)
        except ModelError:  # some templates refuse some orders of roles
            return
        sampled = self.sampled(pieces, finish_reason)
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

    def sampled(self, pieces, finish_reason):
        """The pieces up to their first stop token; one is added if the model is to stop."""
        stops = self.template.stop_token_ids
        ids = [
            t for piece in pieces for t in self.pieces.get(str(piece), piece) if t < self.num_tokens
        ]
        end = next((index for index, token in enumerate(ids) if token in stops), len(ids))
        if finish_reason == "stop":
            return ids[: end + 1] if end < len(ids) else [*ids, stops[0]]
        return ids[:end]

    def parsed(self, completion):
        text = self.template.decode(completion.token_ids, keep=self.parser.special_tokens)
        found = self.parser.parse(text).without_marks()
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

    def add(self, messages, tools, role, text, call_id="x"):
        messages.append({"role": role, "content": text, "tool_call_id": call_id})

    def fork(self, messages, tools, length):
        self.talks.append((copy.deepcopy(messages[:length]), tools))

    def edit(self, messages, tools, index, text):
        index %= len(messages)
        messages[index] = {**messages[index], "content": text}


@settings(max_examples=250)
@given(st.sampled_from(sorted(TEMPLATES)), st.lists(ACTIONS, max_size=14))
def test_sampled_ids_are_trained_once_each_after_the_prompt_that_was_seen(family, actions):
    agent = Agent(family)
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


@pytest.mark.parametrize("family", sorted(set(FAMILY_CALL) - {"deepseekv3"}))
def test_a_long_tool_loop_is_one_timeline(family):
    """The actions above reach what they should: here is one that continues ten times."""
    agent = Agent(family)
    for index in range(10):
        agent.do("call", 0, ["call"], "stop", True)
        [asked] = agent.turns[-1].reply["tool_calls"]
        assert asked["function"] == {"name": "add", "arguments": {"a": 1}}
        agent.do("add", 0, "tool", f"result {index}", asked["id"])
    assert [prompt.continues for prompt in agent.prompts] == [False] + [True] * 9
    assert len(timelines(agent.turns)) == 1


def test_deepseeks_first_template_begins_a_branch_at_each_call_and_says_why():
    """It writes <think> into the prompt and not into the history."""
    agent = Agent("deepseekv3")
    for _ in range(3):
        agent.do("step", 0, ["call"], "stop", True, "5")
    reasons = [prompt.reason for prompt in agent.prompts]
    assert reasons == [None] + ["the template changes earlier messages when new ones come"] * 2
    assert len(timelines(agent.turns)) == 3
