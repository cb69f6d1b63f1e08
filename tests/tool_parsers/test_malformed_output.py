"""Ten thousand replies that no model should write, in every family."""

import asyncio
import json
import random
import re
import time

import pytest

from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import Completion, ModelEndpoint
from ajet.core.trajectory.limits import EpisodeLimits
from ajet.core.trajectory.recorder import EpisodeRecorder
from ajet.tool_parsers import parser_for
from tests.fakes import FAMILY_CALL, FAMILY_TOKENS, TAG_TOKENS, chat_tokenizer, recorder_parts

FAMILIES = ["qwen2_5", "qwen3", "qwen3_6", "llama3_2", "mistral", "mistral_args"]
FAMILIES += ["deepseekv3", "deepseek_v3_1", "gptoss", "glm4moe", "kimi_k2", "minimax_m2"]
FAMILIES += ["nemotron_json", "gemma4_v5"]
NUM_PARSED, NUM_RECORDED = 950, 50  # a family
TOOLS = [
    {
        "type": "function",
        "function": {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}}},
    }
]
BROKEN = ["{", "}", "]", '"', '{"name": ', '"arguments": {', ', "parameters": {}}', "null", "\\"]
BROKEN += ["[" * 200, '{"a": ' * 300, "9" * 6000, "1e999", "NaN", '"\\ud83d"', "\ufdd0", "\n", " "]
BROKEN += ["<function=add>", "<parameter=a>", "</parameter>", "</function>", "```json\n", "add"]
EMOJI = "\N{GRINNING FACE}".encode()
STRAY = [list(EMOJI[:2]), list(EMOJI[2:]), [0xC3], [0xFF], [0]]  # bytes are ids


class Writer:
    """Writes replies of pieces: calls whole, cut and doubled, tokens real and spelled out, broken
    JSON, parts of characters, and words that can be found again."""

    def __init__(self, family):
        self.random = random.Random(f"malformed output of {family}")
        self.template = ChatTemplate(chat_tokenizer(family))
        self.call = FAMILY_CALL[family]
        self.quote = '<|"|>' if family == "gemma4_v5" else '"'
        self.tokens = [*FAMILY_TOKENS.get(family, ()), *TAG_TOKENS]
        self.num_words = 0

    def write(self):
        ids = [token for _ in range(self.random.randint(1, 8)) for token in self.piece()]
        return ids[: self.random.randint(0, len(ids))] if self.random.random() < 0.2 else ids

    def piece(self):
        kinds = [self.word, self.word, self.whole, self.cut, self.nested, self.broken]
        write = self.random.choice([*kinds, self.token, self.token, None])
        if write is None:
            return self.random.choice(STRAY)
        text = write()
        is_spelled = self.random.random() < 0.2
        return self.template.encode(self.template.marked(text) if is_spelled else text)

    def token(self):
        return self.random.choice(self.tokens)

    def broken(self):
        return self.random.choice(BROKEN)

    def word(self):
        self.num_words += 1
        return f" word{self.num_words}s "

    def whole(self):
        return self.call.replace("1", f"{self.quote}{self.word().strip()}{self.quote}")

    def cut(self):
        call = self.whole()
        start, stop = sorted(self.random.randint(0, len(call)) for _ in range(2))
        return call[start:stop]

    def nested(self):
        return self.call.replace("1", self.call)


def words(text):
    return set(re.findall(r"word\d+s", text))


@pytest.mark.parametrize("family", FAMILIES)
def test_any_output_is_parsed_and_every_word_is_content_or_a_call(family):
    writer, parser = Writer(family), parser_for(ChatTemplate(chat_tokenizer(family)))
    num_calls = num_malformed = 0
    for _ in range(NUM_PARSED):
        text = writer.template.decode(writer.write(), keep=parser.special_tokens)
        reply = parser.parse(text, TOOLS)
        told = [reply.content, reply.reasoning or ""]
        told += [json.dumps([call.name, call.arguments]) for call in reply.tool_calls]
        assert words(text) <= words(" ".join(told))
        assert all(malformed in reply.content or reply.tool_calls for malformed in reply.malformed)
        num_calls += len(reply.tool_calls)
        num_malformed += len(reply.malformed)
    assert num_malformed > 100
    assert num_calls > 20


class Replays(ModelEndpoint):
    """An endpoint that samples what it is given."""

    def __init__(self):
        self.ids, self.reason = [], "stop"

    async def generate(self, prompt_ids, sampling, request_id):
        return Completion(
            tuple(prompt_ids), tuple(self.ids), (-0.5,) * len(self.ids), self.reason, 0
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_what_was_sampled_is_recorded_whatever_it_says_and_the_episode_goes_on(family):
    writer = Writer(family)
    stop = writer.template.stop_token_ids[0]
    for number in range(NUM_RECORDED):
        ids = [token for token in writer.write() if token not in writer.template.stop_token_ids]
        reason = "stop" if number % 2 else "length"
        asyncio.run(two_turns(writer.template, [*ids, stop] if number % 2 else ids, reason))


async def two_turns(template, ids, reason):
    endpoint = Replays()
    endpoint.ids, endpoint.reason = ids, reason
    limits = EpisodeLimits(max_model_len=10**6, max_prompt_length=10**6)
    episode = EpisodeRecorder(**recorder_parts(endpoint, template, limits=limits))
    messages = [{"role": "user", "content": "q"}]
    first = await episode.chat(messages, TOOLS)
    assert first.completion.token_ids == tuple(ids)
    calls = first.reply.get("tool_calls", [])
    answers = [{"role": "tool", "content": "5", "tool_call_id": call["id"]} for call in calls]
    new = answers or [{"role": "user", "content": "r"}]
    second = await episode.chat([*messages, first.reply, *new], TOOLS)
    recorded = first.completion.prompt_ids + first.completion.token_ids
    if second.notes.continues:
        assert second.completion.prompt_ids[: len(recorded)] == recorded
    else:
        assert second.notes.reason


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reply_of_white_space_takes_no_time(family):
    """A backtracking pattern would need minutes for these, and hold up every episode."""
    parser = parser_for(ChatTemplate(chat_tokenizer(family)))
    call = FAMILY_CALL[family]
    for gap in (" " * 20_000, "\n" * 20_000, "a " * 10_000):
        begun = time.process_time()
        header = f"<|channel|>analysis{gap}x<|message|>"  # gpt-oss'
        for text in (gap, header, call.replace(" ", gap, 1), call[: len(call) // 2] + gap):
            parser.parse(text)
        assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    ("family", "reply"),
    [
        ("qwen2_5", '<tool_call>\n{"name": "write", "arguments": {}, "name": "now"}\n</tool_call>'),
        ("qwen2_5", '<tool_call>\n{"name": "write", "arguments": {"a": 1, "a": 2}}\n</tool_call>'),
        ("qwen2_5", '<tool_call>\n{"name": "write", "arguments": {}, "text": "a"}\n</tool_call>'),
        (
            "llama3_2",
            '<|python_tag|>{"name": "write", "parameters": {"text": "a"}}'
            '<|python_tag|>{"name": "now", "parameters": {}}',
        ),
        ("mistral_args", '[TOOL_CALLS]write[ARGS]{"text": "a"}now[ARGS]{}'),
    ],
)
def test_a_reply_of_which_a_part_would_be_lost_is_no_call(family, reply):
    """A key that is there twice, a field beside the arguments, a second call without its mark."""
    parsed = parser_for(ChatTemplate(chat_tokenizer(family))).parse(reply)
    assert not parsed.tool_calls
    assert parsed.malformed
