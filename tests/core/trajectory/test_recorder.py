"""What the recorder sends, records and refuses."""

import asyncio
import copy
import json
from dataclasses import replace

import pytest

from ajet.core import seeding
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import Completion, ContextOverflow, SamplingParams
from ajet.core.trajectory.limits import (
    EndpointFault,
    EpisodeClosed,
    EpisodeLimits,
    EpisodeTruncated,
)
from ajet.core.trajectory.recorder import EpisodeRecorder, SamplingOverrides
from ajet.core.trajectory.turn import TurnNotes
from tests.fakes import FAMILY_CALL, ScriptedEndpoint, chat_tokenizer, recorder_parts

TOKENIZER = chat_tokenizer("qwen2_5")
HI = [{"role": "user", "content": "hi"}]
ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": "é"}}\n</tool_call>'


def recorder(
    reply=lambda prompt, request_id: "ok",
    targets=None,
    endpoint=None,
    tokenizer=TOKENIZER,
    **limits,
):
    template = ChatTemplate(tokenizer)
    parts = recorder_parts(
        endpoint or ScriptedEndpoint(TOKENIZER, reply),
        template,
        limits=EpisodeLimits(**limits),
        sampling=SamplingParams(temperature=0.7),
        seed_path=(7, "rollout", 0),
        trainable_targets=targets,
    )
    return EpisodeRecorder(**parts)


def num_prompt_tokens(messages):
    return len(ChatTemplate(TOKENIZER).prompt_ids(messages))


async def test_the_second_turn_sends_the_sampled_ids_of_the_first_back():
    endpoint = ScriptedEndpoint(TOKENIZER, lambda prompt, request_id: "fine")
    episode = recorder(endpoint=endpoint)
    first = await episode.chat(HI)
    again = [*HI, first.reply, {"role": "user", "content": "and?"}]
    second = await episode.chat(again)
    sampled = list(first.completion.prompt_ids + first.completion.token_ids)
    assert list(second.completion.prompt_ids)[: len(sampled)] == sampled
    assert list(endpoint.prompts) == ["e/0000", "e/0001"]
    assert endpoint.sampling["e/0001"].seed == seeding.derive(7, "rollout", 0, 1)
    assert endpoint.sampling["e/0000"].stop_token_ids == ChatTemplate(TOKENIZER).stop_token_ids
    assert second.notes.continues is True
    assert episode.turns == (first, second)


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ("hi", "messages is of type str"),
        (HI[0], "messages is of type dict"),
        (["hi"], "a message is of type str"),
        ([("user", "hi", "there")], "a message is of type tuple"),
    ],
)
async def test_what_is_no_list_of_messages_is_told_the_form_of_one(messages, problem):
    with pytest.raises(TypeError) as error:
        await recorder().chat(messages)
    form = "give a list of dicts, [{'role': 'user', 'content': 'a text'}]"
    assert str(error.value) == f"{problem}; {form}"


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ('```json\n{"name": "add", "arguments": {"a": 1}}\n```', "json"),
        ("<tool_call>\n<function=add>\n</function>\n</tool_call>", "qwen3_coder"),
        ('```json\n{"name": "Ann", "arguments": {"a": 1}}\n```', None),
        (CALL, None),
    ],
)
async def test_a_turn_says_which_parser_would_have_read_its_call(text, form):
    turn = await recorder(lambda *_: text).chat(HI, [ADD])
    assert turn.notes.other_form == form
    assert (
        await recorder(lambda *_: text).chat(HI, [ADD], tool_choice="none")
    ).notes.other_form is None
    assert (await recorder(lambda *_: text).chat(HI)).notes.other_form is None


@pytest.mark.parametrize(
    ("family", "text", "call_id", "cited"),
    [
        (
            "mistral",
            '[TOOL_CALLS][{"name": "add", "arguments": {"s": "a"}, "id": "AbCdEfGh1"}]',
            "AbCdEfGh1",
            '"call_id": "AbCdEfGh1"',
        ),
        (
            "kimi_k2",
            FAMILY_CALL["kimi_k2"].replace("add:0", "add:7"),
            "functions.add:7",
            "## Return of functions.add:7\n",
        ),
    ],
)
async def test_a_result_cites_the_id_that_the_model_gave_its_call(family, text, call_id, cited):
    tokenizer = chat_tokenizer(family)
    endpoint = ScriptedEndpoint(tokenizer, lambda *_: text)
    episode = recorder(endpoint=endpoint, tokenizer=tokenizer, max_model_len=10**5)
    first = await episode.chat(HI, [ADD])
    [call] = first.reply["tool_calls"]
    assert call["id"] == call_id
    result = {"role": "tool", "tool_call_id": call["id"], "content": "res"}
    second = await episode.chat([*HI, first.reply, result], [ADD])
    assert second.notes.continues is True
    assert cited in tokenizer.decode(second.completion.prompt_ids)


async def test_ids_that_are_not_the_templates_or_come_twice_are_not_kept():
    tokenizer = chat_tokenizer("mistral")
    calls = [{"name": "add", "arguments": {}, "id": i} for i in ("abcdefghi", "abcdefghi", "x")]
    text = f"[TOOL_CALLS]{json.dumps(calls)}"
    endpoint = ScriptedEndpoint(tokenizer, lambda *_: text)
    turn = await recorder(endpoint=endpoint, tokenizer=tokenizer).chat(HI, [ADD])
    ids = [call["id"] for call in turn.reply["tool_calls"]]
    assert ids == ["abcdefghi", "call_0000_1", "call_0000_2"]


async def test_a_tool_call_comes_back_in_openais_form_with_an_id_of_its_turn():
    turn = await recorder(lambda *_: f"Let me see.{CALL}").chat(HI, [ADD])
    assert turn.reply["content"] == "Let me see."
    [call] = turn.reply["tool_calls"]
    assert call["id"] == "call_0000_0"
    assert call["function"]["name"] == "add"
    assert json.loads(call["function"]["arguments"]) == {"a": "é"}


async def test_calls_are_text_when_the_agent_forbids_them_but_the_schemas_stay_in_the_prompt():
    episode = recorder(lambda *_: CALL)
    turn = await episode.chat(HI, [ADD], tool_choice="none")
    assert turn.reply == {"role": "assistant", "content": CALL}
    assert '"add"' in TOKENIZER.decode(turn.completion.prompt_ids)


async def test_a_call_that_the_workflow_did_not_wait_for_is_aborted_when_the_episode_ends():
    class Slow(ScriptedEndpoint):
        aborted = []

        async def generate(self, prompt_ids, sampling, request_id):
            await asyncio.sleep(60)

        def abort(self, request_id):
            self.aborted.append(request_id)

    endpoint = Slow(TOKENIZER, lambda *_: "ok")
    episode = recorder(endpoint=endpoint)
    pending = asyncio.create_task(episode.chat(HI))
    await asyncio.sleep(0.01)
    episode.close()
    assert endpoint.aborted == ["e/0000"]
    pending.cancel()


async def test_an_agent_that_caught_a_fault_of_the_endpoint_and_went_on_is_not_excused_by_it():
    class Once(ScriptedEndpoint):
        faults = [ConnectionError("gone")]

        async def generate(self, prompt_ids, sampling, request_id):
            if self.faults:
                raise self.faults.pop()
            return await super().generate(prompt_ids, sampling, request_id)

    episode = recorder(endpoint=Once(TOKENIZER, lambda *_: "ok"))
    with pytest.raises(EndpointFault):
        await episode.chat(HI)
    assert episode.endpoint_fault == "ConnectionError: gone"
    await episode.chat(HI)
    assert episode.endpoint_fault is None


def test_a_reply_of_no_tokens_cannot_be_asked_for():
    with pytest.raises(ValueError, match="max_tokens is 0"):
        SamplingOverrides(max_tokens=0)
    assert SamplingOverrides(max_tokens=1).settings == {"max_tokens": 1}


SUB = {"type": "function", "function": {"name": "sub", "parameters": {}}}


@pytest.mark.parametrize(
    ("choice", "tools", "sampled"),
    [
        ("add", [ADD, SUB], ' {"a": 1}}\n</tool_call>'),
        ("required", [ADD], ' {"a": 1}}\n</tool_call>'),
        ("required", [ADD, SUB], '\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'),
    ],
)
async def test_a_forced_call_is_opened_by_the_prompt_and_what_is_sampled_goes_on_from_there(
    choice, tools, sampled
):
    episode = recorder(lambda *_: sampled)
    first = await episode.chat(HI, tools, tool_choice=choice)
    [call] = first.reply["tool_calls"]
    assert call["function"]["name"] == "add"
    assert json.loads(call["function"]["arguments"]) == {"a": 1}
    assert TOKENIZER.decode(first.completion.prompt_ids).endswith(first.notes.opening)
    assert TOKENIZER.decode(first.completion.token_ids[:-1]) == sampled
    result = {"role": "tool", "content": "1", "tool_call_id": call["id"]}
    second = await episode.chat([*HI, first.reply, result], tools)
    before = first.completion.prompt_ids + first.completion.token_ids
    assert second.completion.prompt_ids[: len(before)] == before
    assert second.notes.continues is True


FAMILIES = ("qwen2_5", "qwen3_6", "mistral_args", "llama3_2", "gptoss", "glm4moe", "kimi_k2")
FAMILIES += ("minimax_m2", "nemotron_json", "nemotron_3_nano", "gemma4_v5")


@pytest.mark.parametrize("family", FAMILIES)
async def test_every_familys_calls_come_back_and_the_conversation_goes_on(family):
    tokenizer = chat_tokenizer(family)
    call = FAMILY_CALL[family]
    stops = ChatTemplate(tokenizer).stop_token_ids

    class StopsAtOnce(ScriptedEndpoint):
        async def generate(self, prompt_ids, sampling, request_id):
            whole = await super().generate(prompt_ids, sampling, request_id)
            end = next(i for i, token in enumerate(whole.token_ids, 1) if token in stops)
            cut = {"token_ids": whole.token_ids[:end], "logprobs": whole.logprobs[:end]}
            return replace(whole, **cut)

    endpoint = StopsAtOnce(tokenizer, lambda prompt, request_id: call)
    episode = recorder(endpoint=endpoint, tokenizer=tokenizer)
    offered = [{**ADD, "function": {**ADD["function"], "parameters": A_IS_TEXT}}]
    first = await episode.chat(HI, offered)
    [asked] = first.reply["tool_calls"]
    a = "1" if family in TYPED else 1
    assert json.loads(asked["function"]["arguments"]) == {"a": a}
    result = {"role": "tool", "content": "1", "tool_call_id": asked["id"]}
    second = await episode.chat([*HI, first.reply, result], offered)
    before = first.completion.prompt_ids + first.completion.token_ids
    assert second.completion.prompt_ids[: len(before)] == before


TYPED = ("qwen3_6", "glm4moe", "minimax_m2", "nemotron_3_nano")  # values have the schema's type
A_IS_TEXT = {"type": "object", "properties": {"a": {"type": "string"}}}


async def test_special_tokens_that_are_only_spelled_make_no_call_and_leave_no_mark():
    class Spells(ScriptedEndpoint):
        async def generate(self, prompt_ids, sampling, request_id):
            ids = template.encode(template.marked(spelled))
            return Completion(tuple(prompt_ids), tuple(ids), (-0.5,) * len(ids), "length", 0)

    tokenizer = chat_tokenizer("mistral_args")
    template, spelled = ChatTemplate(tokenizer), FAMILY_CALL["mistral_args"]
    episode = recorder(endpoint=Spells(tokenizer, None), tokenizer=tokenizer)
    for choice in (None, "none"):
        turn = await episode.chat(HI, [ADD], tool_choice=choice)
        assert turn.reply == {"role": "assistant", "content": spelled}
    assert (await episode.generate([1, 2])).reply["content"] == spelled


async def test_a_call_cannot_be_forced_on_a_template_whose_calls_are_not_read():
    tokenizer = chat_tokenizer("lfm2_v2")
    endpoint = ScriptedEndpoint(tokenizer, lambda *_: "ok")
    episode = recorder(endpoint=endpoint, tokenizer=tokenizer)
    with pytest.raises(ValueError, match="no call can be forced"):
        await episode.chat(HI, [ADD], tool_choice="required")


async def test_a_forced_tool_that_is_not_offered_is_an_error():
    with pytest.raises(ValueError, match="'sub' is none of add"):
        await recorder().chat(HI, [ADD], tool_choice="sub")


async def test_force_disable_toolcalls_offers_no_tools_and_reads_no_calls():
    turn = await recorder(lambda *_: CALL, force_disable_toolcalls=True).chat(HI, [ADD])
    assert turn.reply["content"] == CALL
    assert '"add"' not in TOKENIZER.decode(turn.completion.prompt_ids)


async def test_room_is_the_smallest_of_turn_episode_and_request():
    async def asked(overrides=None, **limits):
        endpoint = ScriptedEndpoint(TOKENIZER, lambda *_: "ok")
        await recorder(endpoint=endpoint, **limits).chat(HI, overrides=overrides)
        return endpoint.sampling["e/0000"].max_tokens

    prompt = num_prompt_tokens(HI)
    assert await asked() == 4096
    assert await asked(max_model_len=prompt + 10) == 10
    assert await asked(max_prompt_length=prompt, max_response_length=20) == 20
    assert await asked(SamplingOverrides(max_tokens=5), max_response_length_in_one_turn=8) == 5
    assert await asked(SamplingOverrides(max_tokens=50), max_response_length_in_one_turn=8) == 8


async def test_a_first_prompt_over_the_limit_truncates_before_the_model_is_asked():
    endpoint = ScriptedEndpoint(TOKENIZER, lambda *_: "ok")
    episode = recorder(endpoint=endpoint, max_prompt_length=5)
    with pytest.raises(
        EpisodeTruncated, match=r"the first prompt has \d+ tokens; max_prompt_length is 5"
    ):
        await episode.chat(HI)
    assert endpoint.prompts == {}
    assert episode.truncation is not None


async def test_turn_and_token_limits_truncate_and_later_calls_are_refused():
    episode = recorder(max_steps=1)
    await episode.chat(HI)
    for _ in range(2):
        with pytest.raises(EpisodeTruncated, match=r"its 1 calls \(max_steps\)"):
            await episode.chat(HI)
    prompt = num_prompt_tokens(HI)
    episode = recorder(lambda *_: "a long reply", max_model_len=prompt + 4)
    cut = await episode.chat(HI)
    assert cut.completion.finish_reason == "length"
    assert len(cut.completion.token_ids) == 4
    assert str(episode.truncation) == f"turn 0 filled the episode's {prompt + 4} tokens"
    with pytest.raises(EpisodeTruncated):
        await episode.chat([*HI, cut.reply, *HI])


async def test_a_reply_cut_by_the_turns_limit_leaves_the_episode_going():
    episode = recorder(lambda *_: "a long reply", max_response_length_in_one_turn=3)
    cut = await episode.chat(HI)
    assert cut.completion.finish_reason == "length"
    assert episode.truncation is None
    await episode.chat([*HI, cut.reply, *HI])
    assert len(episode.turns) == 2


async def test_an_endpoints_overflow_truncates_and_its_other_errors_are_its_own():
    class Fails(ScriptedEndpoint):
        error: Exception = ContextOverflow()

        async def generate(self, prompt_ids, sampling, request_id):
            raise self.error

    endpoint = Fails(TOKENIZER, None)
    with pytest.raises(EpisodeTruncated):
        await recorder(endpoint=endpoint).chat(HI)
    endpoint.error = RuntimeError("no memory")
    episode = recorder(endpoint=endpoint)
    with pytest.raises(EndpointFault):
        await episode.chat(HI)
    assert episode.endpoint_fault == "RuntimeError: no memory"


async def test_concurrent_calls_are_numbered_in_the_order_in_which_they_begin():
    class LateFirst(ScriptedEndpoint):
        async def generate(self, prompt_ids, sampling, request_id):
            await asyncio.sleep(0.02 if request_id == "e/0000" else 0)
            return await super().generate(prompt_ids, sampling, request_id)

    endpoint = LateFirst(TOKENIZER, lambda prompt, request_id: request_id)
    episode = recorder(endpoint=endpoint)
    await asyncio.gather(*(episode.chat([{"role": "user", "content": q}]) for q in "abc"))
    assert [t.messages[0]["content"] for t in episode.turns] == ["a", "b", "c"]
    assert [t.reply["content"] for t in episode.turns] == ["e/0000", "e/0001", "e/0002"]


async def test_a_cancelled_call_aborts_its_request():
    aborted = []

    class Slow(ScriptedEndpoint):
        def abort(self, request_id):
            aborted.append(request_id)

        async def generate(self, prompt_ids, sampling, request_id):
            await asyncio.sleep(60)

    call = asyncio.ensure_future(recorder(endpoint=Slow(TOKENIZER, None)).chat(HI))
    await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert aborted == ["e/0000"]


async def test_a_closed_episode_takes_no_call_and_no_late_reply():
    class Aborts(ScriptedEndpoint):
        async def generate(self, prompt_ids, sampling, request_id):
            return Completion(tuple(prompt_ids), (65,), (-0.5,), "abort", 0)

    episode = recorder(endpoint=Aborts(TOKENIZER, None))
    with pytest.raises(EpisodeClosed):
        await episode.chat(HI)
    assert episode.turns == ()
    episode = recorder()
    episode.close()
    with pytest.raises(EpisodeClosed):
        await episode.chat(HI)


async def test_only_the_targets_are_trained_by_name_or_by_tag():
    episode = recorder(targets=["solver", "blue"])
    turns = [
        await episode.chat(HI, agent_name=name, target_tag=tag)
        for name, tag in (("solver", "red"), ("critic", "blue"), ("critic", "red"))
    ]
    assert [t.trainable for t in turns] == [True, True, False]
    assert all([(await recorder().chat(HI)).trainable])


async def test_token_level_calls_are_recorded_as_they_were_sent():
    episode = recorder()
    turn = await episode.generate([72, 105], overrides=SamplingOverrides(max_tokens=9))
    assert turn.completion.prompt_ids == (72, 105)
    assert turn.reply == {"role": "assistant", "content": "ok"}
    assert turn.notes == TurnNotes(sampling={"max_tokens": 9})
    assert episode.turns == (turn,)


@pytest.mark.parametrize(("agent", "drawn_at"), [("solver", 0.7), ("critic", 0.1)])
async def test_a_trained_agent_samples_at_the_runs_temperature_another_at_its_own(agent, drawn_at):
    endpoint = ScriptedEndpoint(TOKENIZER, lambda *_: "ok")
    episode = recorder(endpoint=endpoint, targets=["solver"])
    turn = await episode.chat(HI, agent_name=agent, overrides=SamplingOverrides(temperature=0.1))
    assert endpoint.sampling["e/0000"].temperature == drawn_at
    assert turn.notes.sampling_not_taken == ({"temperature": 0.1} if agent == "solver" else {})


async def test_later_changes_of_the_agents_messages_do_not_reach_the_record():
    episode = recorder()
    messages = [dict(m) for m in HI]
    turn = await episode.chat(messages)
    messages[0]["content"] = "edited"
    messages.append(turn.reply)
    assert turn.messages == HI


def test_a_copied_recorder_is_the_same_recorder():
    episode = recorder()
    assert copy.deepcopy({"model": episode})["model"] is episode


async def test_a_reply_that_ended_at_a_stop_string_is_continued_from_its_tokens():
    said = {"e/0000": "Thought. Observation: 4", "e/0001": "done"}
    episode = recorder(lambda prompt, request_id: said[request_id])
    first = await episode.chat(HI, overrides=SamplingOverrides(stop="Observation:"))
    assert first.reply["content"] == "Thought. "
    assert TOKENIZER.decode(first.completion.token_ids) == "Thought. Observation:"
    assert first.completion.finish_reason == "stop"
    assert first.notes.stopped_at == "Observation:"
    second = await episode.chat([*HI, first.reply, {"role": "user", "content": "4"}])
    recorded = first.completion.prompt_ids + first.completion.token_ids
    assert second.completion.prompt_ids[: len(recorded)] == recorded
    assert second.notes.continues


async def test_the_agents_own_seed_makes_it_another_draw_of_the_runs():
    endpoint = ScriptedEndpoint(TOKENIZER, lambda *_: "ok")
    episode = recorder(endpoint=endpoint)
    for seed in (None, 5, 5, 6):
        await episode.chat(HI, overrides=SamplingOverrides(seed=seed))
    seeds = [endpoint.sampling[f"e/{call:04d}"].seed for call in range(4)]
    assert seeds == [
        seeding.derive(7, "rollout", 0, 0),
        seeding.derive(7, "rollout", 0, 1, "own", 5),
        seeding.derive(7, "rollout", 0, 2, "own", 5),
        seeding.derive(7, "rollout", 0, 3, "own", 6),
    ]
