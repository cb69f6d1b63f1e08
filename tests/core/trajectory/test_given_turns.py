"""Given replies go down the path of sampled ones: the same prompts, masks and timelines."""

from dataclasses import replace

import numpy as np
import pytest

from ajet.core.errors import DataError
from ajet.core.errors.codes import Code
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import ModelEndpoint
from ajet.core.model.load import load_model
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.trajectory.limits import EpisodeLimits, EpisodeTruncated, Limit
from ajet.core.trajectory.recorder import EpisodeRecorder
from ajet.core.trajectory.samples import timelines, to_samples
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, Trajectory
from tests.fakes import ScriptedEndpoint, chat_tokenizer, recorder_parts

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
]
FUNCTION = {"name": "add", "arguments": '{"a": 12}'}
CALL = {"id": "call_0000_0", "type": "function", "function": FUNCTION}
CHAT = [
    {"role": "user", "content": "the 12?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_0000_0", "content": "12"},
    {"role": "assistant", "content": "It is 12."},
]
END, NEWLINE = 257, 10  # <|im_end|>, "\n"


def recorder(tokenizer, endpoint=None, **limits):
    template = ChatTemplate(tokenizer)
    endpoint = endpoint or ModelEndpoint.__new__(Unused)
    return EpisodeRecorder(**recorder_parts(endpoint, template, limits=EpisodeLimits(**limits)))


class Unused(ModelEndpoint):
    async def generate(self, prompt_ids, sampling, request_id):
        raise AssertionError("a given reply calls no engine")


async def play(episode, chat=CHAT, tools=TOOLS):
    for index, message in enumerate(chat):
        if message["role"] == "assistant":
            await episode.give(chat[:index], message, tools)
    return episode.turns


def sample_of(turns):
    plan = WorkflowTask(Task("t"), "e", "g-0", 0, 1, "train", 0)
    episode = Trajectory(plan, turns, EpisodeStatus.OK, reward=0.0)
    zeros = {"e": tuple(np.zeros(len(t.completion.token_ids), np.float32) for t in turns)}
    return to_samples([Group("g-0", (episode,))], zeros)


async def test_a_given_reply_has_the_ids_of_its_text_and_its_end_pinned_by_hand():
    episode = recorder(chat_tokenizer("qwen2_5", merges=False))
    turn = await episode.give(
        [{"role": "user", "content": "hi"}], {"role": "assistant", "content": "ok"}
    )
    assert turn.completion.token_ids == (ord("o"), ord("k"), END)
    assert turn.completion.prompt_ids[-3:] == (ord("n"), ord("t"), NEWLINE)
    assert (turn.completion.finish_reason, turn.is_given) == ("stop", True)


@pytest.mark.parametrize(
    "family",
    [
        "qwen2_5",
        "qwen3_instruct_2507",
        "llama3_1",
        "mistral",
        "deepseek_v3_1",
        "kimi_k2",
        "gemma4_v5",
    ],
)
async def test_a_given_chat_is_one_timeline_with_the_ids_of_a_fresh_render(family):
    tokenizer = chat_tokenizer(family)
    template = ChatTemplate(tokenizer)
    turns = await play(recorder(tokenizer))
    [timeline] = timelines(turns)
    fresh = template.encode(template.render_marked(CHAT, TOOLS, add_generation_prompt=False))
    assert timeline.token_ids.tolist() == fresh[: len(timeline.token_ids)]
    assert [template.decode(t.completion.token_ids).strip() for t in turns][1] == "It is 12."
    assert "add" in template.decode(turns[0].completion.token_ids)
    assert all(t.completion.token_ids[-1] in template.stop_token_ids for t in turns)


async def test_the_embedded_model_gets_the_ids_of_a_fresh_render_and_trains_the_replies_alone():
    loaded = load_model("embedded:math")
    template = ChatTemplate(loaded.tokenizer)
    turns = await play(recorder(loaded.tokenizer))
    [sample] = sample_of(turns)
    fresh = template.encode(template.render_marked(CHAT, TOOLS, add_generation_prompt=False))
    assert sample.token_ids.tolist() == fresh[: len(sample)]
    assert template.text_of(sample.token_ids[sample.loss_mask].tolist()) == (
        '<tool_call>\n{"name": "add", "arguments": {"a": 12}}\n</tool_call><|im_end|>'
        "It is 12.<|im_end|>"
    )
    assert sample.streams is not None
    assert (sample.stream("cross_entropy") == sample.loss_mask).all()
    assert not sample.carries("policy_gradient") and not sample.carries("kl_reference")


async def test_thinking_that_the_template_drops_from_the_history_stays_on_its_own_timeline():
    tokenizer = chat_tokenizer("qwen3")
    chat = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "so b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    turns = await play(recorder(tokenizer), chat, None)
    first, second = timelines(turns)
    text = ChatTemplate(tokenizer).text_of
    assert text(turns[0].completion.token_ids) == "<think>\nso b\n</think>\n\nb<|im_end|>"
    assert "so b" in text(first.token_ids.tolist()) and "so b" not in text(
        second.token_ids.tolist()
    )


async def test_given_ids_are_taken_as_they_are_and_the_next_turn_continues_them():
    tokenizer = chat_tokenizer("qwen2_5")
    template, episode = ChatTemplate(tokenizer), recorder(chat_tokenizer("qwen2_5"))
    ids = (*b"the", END)  # not as the tokenizer writes it: it has a token for "the"
    user = {"role": "user", "content": "hi"}
    reply = {"role": "assistant", "content": "the"}
    first = await episode.give([user], reply, token_ids=ids)
    second = await episode.give([user, reply, user], {"role": "assistant", "content": "a"})
    assert first.completion.token_ids == ids != (*template.encode("the"), END)
    whole = (*first.completion.prompt_ids, *ids)
    assert second.completion.prompt_ids[: len(whole)] == whole


async def test_a_reply_that_is_not_trained_is_context():
    episode = recorder(chat_tokenizer("qwen2_5"))
    await episode.give(CHAT[:1], CHAT[1], TOOLS, is_trained=False)
    await episode.give(CHAT[:3], CHAT[3], TOOLS)
    [sample] = sample_of(episode.turns)
    assert sample.num_trained == len(episode.turns[1].completion.token_ids)


async def test_given_and_sampled_turns_of_one_episode_have_streams_of_their_own():
    tokenizer = chat_tokenizer("qwen2_5")
    endpoint = ScriptedEndpoint(tokenizer, lambda prompt, request_id: "fine")
    episode = recorder(tokenizer, endpoint)
    user = {"role": "user", "content": "hi"}
    reply = {"role": "assistant", "content": "ok"}
    given = await episode.give([user], reply)
    sampled = await episode.chat([user, reply, user])
    [sample] = sample_of(episode.turns)
    spans = [int(sample.stream(name).sum()) for name in ("cross_entropy", "policy_gradient")]
    assert spans == [len(t.completion.token_ids) for t in (given, sampled)]
    assert sample.num_sampled == len(sampled.completion.token_ids)


async def test_a_reply_beyond_the_limit_is_refused_with_the_key_of_the_limit():
    episode = recorder(chat_tokenizer("qwen2_5"), max_model_len=100)
    long = {"role": "assistant", "content": "x" * 90}
    with pytest.raises(EpisodeTruncated, match="given reply has 91 tokens, of"):
        await episode.give([{"role": "user", "content": "hi"}], long)
    assert episode.truncation.limit is Limit.MAX_MODEL_LEN
    assert episode.turns == ()


@pytest.mark.parametrize("family", ["minimax_m2", "glm4moe"])
async def test_a_template_that_does_not_say_how_a_reply_is_written_is_one_line(family):
    with pytest.raises(DataError, match=r"give the reply's token_ids"):
        await play(recorder(chat_tokenizer(family)))


def test_a_turn_is_given_by_its_note_alone():
    from ajet.core.inference.endpoint import Completion
    from ajet.core.trajectory.turn import Turn, TurnNotes

    turn = Turn(Completion((1,), (2,), (0.0,), "stop", 0), [], None, {})
    assert not turn.is_given
    assert replace(turn, notes=TurnNotes(is_given=True)).is_given


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("qwen3", "<think>\nso b\n</think>\n\nb<|im_end|>"),
        (
            "gptoss",
            "<|channel|>analysis<|message|>so b<|end|>"
            "<|start|>assistant<|channel|>final<|message|>b<|return|>",
        ),
    ],
)
async def test_thinking_is_trained_under_whichever_name_a_reply_has_it(family, text, name):
    episode = recorder(chat_tokenizer(family))
    reply = {"role": "assistant", "content": "b", name: "so b"}
    turn = await episode.give([{"role": "user", "content": "a"}], reply)
    assert ChatTemplate(chat_tokenizer(family)).text_of(turn.completion.token_ids) == text


LOST = [
    ("llama3", CHAT[1], "tool call"),
    ("llama3_1", {**CHAT[1], "content": "Let me see."}, r"content \(next to a tool call\)"),
    ("mistral", {**CHAT[1], "content": "Let me see."}, r"content \(next to a tool call\)"),
    ("gptoss", {**CHAT[1], "tool_calls": [CALL, {**CALL, "id": "b"}]}, "last tool call"),
    ("qwen2_5", {**CHAT[3], "reasoning_content": "hm"}, "reasoning_content"),
    ("llama3_1", {**CHAT[3], "reasoning_content": "hm"}, "reasoning_content"),
]


@pytest.mark.parametrize(("family", "reply", "part"), LOST, ids=[f"{f}-{p}" for f, _, p in LOST])
async def test_a_reply_that_the_template_would_cut_down_is_refused(family, reply, part):
    with pytest.raises(DataError, match=f"leaves out the {part} of a reply") as refused:
        await recorder(chat_tokenizer(family)).give(CHAT[:1], reply, TOOLS)
    assert refused.value.code is Code.ROW_NOT_TRAINABLE


async def test_white_space_next_to_a_call_may_be_left_out():
    turn = await recorder(chat_tokenizer("mistral")).give(CHAT[:1], {**CHAT[1], "content": "\n\n"})
    assert turn.notes.is_given
