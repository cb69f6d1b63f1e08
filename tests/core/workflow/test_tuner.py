"""What a workflow can do with its model without any framework."""

import copy
import json
import pickle
import re
from types import SimpleNamespace

import numpy as np
import pytest

from ajet import ChatReply, ModelTuner
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.trajectory.samples import timelines
from tests.fakes import chat_tokenizer, scripted_recorder

TOKENIZER = chat_tokenizer("qwen2_5")
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def recorder():
    return scripted_recorder(ChatTemplate(TOKENIZER), "hello")


async def test_chat_gives_a_message_that_the_agent_may_edit(recorder):
    tuner = ModelTuner(recorder)
    reply = await tuner.chat(HI, max_tokens=7, target_tag="red")
    assert reply == {"role": "assistant", "content": "hello"}
    reply["content"] = "edited"
    [turn] = recorder.turns
    assert turn.reply["content"] == "hello"
    assert (turn.agent_name, turn.target_tag) == ("default", "red")
    assert turn.notes.sampling == {"max_tokens": 7}


async def test_a_reply_has_its_tokens_and_is_sent_back_like_the_dict_that_it_is(recorder):
    tuner = ModelTuner(recorder)
    reply = await tuner.chat(HI)
    assert isinstance(reply, ChatReply) and json.loads(json.dumps(reply)) == dict(reply)
    assert copy.deepcopy(reply) == pickle.loads(pickle.dumps(reply)) == reply
    with pytest.raises(AttributeError, match=r"it is a dict, reply\['content'\], with the"):
        _ = reply.content
    assert (reply.text, reply.tool_calls, reply.malformed_tool_calls) == ("hello", [], [])
    assert reply.completion is recorder.turns[0].completion
    again = [*HI, copy.deepcopy(reply), *HI]
    assert tuner.prompt_ids(again) == tuner.prompt_ids([*HI, dict(reply), *HI])
    await tuner.chat(again)
    assert type(recorder.turns[1].messages[1]) is dict
    assert len(timelines(recorder.turns)) == 1  # the sampled ids were sent back


async def test_generate_takes_and_gives_token_ids(recorder):
    completion = await ModelTuner(recorder).generate([72, 105], max_tokens=3)
    assert completion.prompt_ids == (72, 105)
    assert completion.token_ids == (*b"hel",)
    assert recorder.turns[0].completion is completion


async def test_a_loop_on_tokens_continues_the_ids_that_were_sampled(recorder):
    tuner = ModelTuner(recorder)
    ids = tuner.prompt_ids(HI)
    assert TOKENIZER.decode(ids).endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    first = await tuner.generate(ids)
    assert tuner.decode(first.token_ids) == "hello"
    border = tuner.encode("\n<|im_start|>user\n", special_tokens=True)
    ids = [*first.prompt_ids, *first.token_ids, *border, *tuner.encode("a<|im_end|>b")]
    await tuner.generate(ids)
    [timeline] = timelines(recorder.turns)
    assert sum(timeline.loss_mask) == 2 * len(first.token_ids)
    assert TOKENIZER.encode("<|im_end|>")[0] not in tuner.encode("a<|im_end|>b")
    assert TOKENIZER.encode("<|im_start|>")[0] in border


async def test_a_call_that_cannot_be_read_is_named_in_the_reply(recorder):
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    broken = '<tool_call>\n{"name": add}\n</tool_call>'
    recorder._endpoint.reply = lambda *_: f"So: {broken}"
    reply = await ModelTuner(recorder).chat(HI, tools)
    assert reply["malformed_tool_calls"] == [broken]
    assert reply["content"] == f"So: {broken}"
    assert "malformed_tool_calls" not in recorder.turns[0].reply
    assert "malformed_tool_calls" not in await ModelTuner(recorder).chat(HI)  # no tools: just text


async def test_the_config_tree_is_at_hand_and_a_copied_tuner_records_in_the_same_place(recorder):
    config = SimpleNamespace(frozen_lake=SimpleNamespace(size=4))
    tuner = copy.deepcopy(ModelTuner(recorder, config=config))
    assert tuner.config.frozen_lake.size == 4
    await tuner.chat(HI)
    assert len(recorder.turns) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"reward": float("nan")}, "the reward is nan"),
        ({"reward": 1e39}, "the reward is 1e+39"),
        ({"state_key": 5}, "the state key is of type int; give a text"),
    ],
)
async def test_a_note_that_nobody_could_calculate_with_is_refused_where_it_is_made(
    recorder, given, message
):
    tuner = ModelTuner(recorder)
    await tuner.chat(HI)
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        tuner.credit_turn(**given)
    tuner.credit_turn(reward=np.float32(0.5), state_key="here")  # type: ignore[arg-type]
    assert (recorder.turns[0].reward, recorder.turns[0].state_key) == (0.5, "here")
    assert type(recorder.turns[0].reward) is float
