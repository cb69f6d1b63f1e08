"""OpenAI's Chat Completions, through OpenAI's own client without a socket."""

import openai
import pytest

from tests.core.workflow.gateway.episode import ADD, CALL, HI, TEMPLATE


@pytest.fixture
def ask(tuner_of):
    """``await ask(reply, **fields)``: the answer, and the turns of the episode."""

    async def ask(reply="ok", messages=HI, recorder=(), **fields):
        tuner = tuner_of(reply, **dict(recorder))
        client = tuner.as_raw_openai_sdk_client()
        answer = await client.chat.completions.create(model="any", messages=messages, **fields)
        return answer, tuner._recorder.turns

    return ask


async def test_the_answer_says_what_was_sampled_and_counts_it_truly(ask):
    answer, [turn] = await ask("fine")
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "fine")
    assert (choice.finish_reason, answer.object, answer.model) == ("stop", "chat.completion", "any")
    assert answer.usage.prompt_tokens == len(TEMPLATE.prompt_ids(HI))
    assert answer.usage.completion_tokens == len(b"fine") + 1  # and the end token
    assert turn.completion.token_ids[:4] == tuple(b"fine")


async def test_the_model_may_be_left_out_and_messages_stand_first(tuner_of):
    tuner = tuner_of(CALL)
    client = tuner.as_raw_openai_sdk_client()
    named = await client.chat.completions.create(messages=HI)
    by_position = await client.chat.completions.create(HI, [ADD], "auto")
    with_options = await client.with_options(timeout=5).chat.completions.create(HI)
    raw = await client.chat.completions.with_raw_response.create(messages=HI)
    assert [each.model for each in (named, by_position, with_options, raw.parse())] == ["ajet"] * 4
    assert by_position.choices[0].message.tool_calls[0].function.name == "add"
    assert [turn.tools for turn in tuner._recorder.turns] == [None, [ADD], None, None]


@pytest.mark.parametrize(
    ("arguments", "fields", "message"),
    [
        ((HI, None, None, 1.0), {}, "takes messages, tools, tool_choice by position"),
        ((HI,), {"messages": HI}, "got messages by position and by name"),
        ((), {}, "Missing required arguments"),
    ],
)
async def test_a_call_without_a_clear_meaning_is_refused(tuner_of, arguments, fields, message):
    client = tuner_of("ok").as_raw_openai_sdk_client()
    with pytest.raises(TypeError, match=message):
        await client.chat.completions.create(*arguments, **fields)


async def test_a_call_and_its_result_go_on_with_the_recorded_ids(tuner_of):
    tuner = tuner_of(
        lambda prompt, request_id: "done" if "0001" in request_id else f"Let me. {CALL}"
    )
    client = tuner.as_raw_openai_sdk_client()
    first = await client.chat.completions.create(model="m", messages=HI, tools=[ADD])
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert [(c.function.name, c.function.arguments) for c in message.tool_calls] == [
        ("add", '{"a": 1}')
    ]
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "2"}
    again = [*HI, message.model_dump(exclude_none=True), result]
    await client.chat.completions.create(model="m", messages=again, tools=[ADD])
    one, two = tuner._recorder.turns
    recorded = one.completion.prompt_ids + one.completion.token_ids
    assert two.completion.prompt_ids[: len(recorded)] == recorded
    assert two.notes.continues


async def test_a_stream_adds_up_to_the_answer(tuner_of):
    client = tuner_of(f"Let me. {CALL}").as_raw_openai_sdk_client()
    asked = {"model": "m", "messages": HI, "tools": [ADD], "stream": True}
    chunks = [
        c
        async for c in await client.chat.completions.create(
            **asked, stream_options={"include_usage": True}
        )
    ]
    *told, last = chunks
    deltas = [chunk.choices[0].delta for chunk in told]
    assert "".join(delta.content or "" for delta in deltas) == "Let me."
    [call] = [call for delta in deltas for call in delta.tool_calls or ()]
    assert (call.index, call.function.arguments) == (0, '{"a": 1}')
    assert told[-1].choices[0].finish_reason == "tool_calls"
    assert last.choices == [] and last.usage.completion_tokens > 0


async def test_each_of_n_choices_is_a_call_with_a_seed_of_its_own(ask):
    answer, turns = await ask(lambda prompt, request_id: request_id, n=3)
    assert [choice.message.content for choice in answer.choices] == ["e/0000", "e/0001", "e/0002"]
    assert len(turns) == 3
    assert answer.usage.completion_tokens == 3 * (len("e/0000") + 1)


async def test_a_stop_string_ends_what_is_sampled_and_trained(ask):
    answer, [turn] = await ask("one two Observation: three", stop=["nothing", "Observation:"])
    assert answer.choices[0].message.content == "one two "
    assert answer.choices[0].finish_reason == "stop"
    assert bytes(turn.completion.token_ids) == b"one two Observation:"
    assert len(turn.completion.logprobs) == len(turn.completion.token_ids)


async def test_a_reply_cut_by_max_tokens_says_length(ask):
    for field in ("max_tokens", "max_completion_tokens"):
        answer, _ = await ask("fine", **{field: 3})
        assert (answer.choices[0].finish_reason, answer.choices[0].message.content) == (
            "length",
            "fin",
        )


async def test_log_probabilities_are_those_of_the_sampled_tokens(ask):
    answer, [turn] = await ask("aé", logprobs=True)
    entries = answer.choices[0].logprobs.content
    assert [entry.logprob for entry in entries] == list(turn.completion.logprobs)
    assert entries[0].token == "a"
    assert [entry.bytes for entry in entries][:3] == [[97], None, None]  # é is two tokens here


async def test_temperature_is_the_runs_for_a_trained_agent_and_its_own_for_another(ask):
    _, [trained] = await ask(temperature=0.1, seed=5)
    assert trained.notes.sampling_not_taken == {"temperature": 0.1}
    _, [other] = await ask(temperature=0.1, recorder={"targets": ["somebody else"]})
    assert other.notes.sampling == {"temperature": 0.1}


async def test_without_parallel_calls_the_agent_sees_one_and_may_send_it_back(tuner_of):
    tuner = tuner_of(CALL + CALL)
    client = tuner.as_raw_openai_sdk_client()
    asked = {"model": "m", "tools": [ADD], "parallel_tool_calls": False}
    first = await client.chat.completions.create(messages=HI, **asked)
    [call] = first.choices[0].message.tool_calls
    sent_back = first.choices[0].message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": call.id, "content": "2"}
    await client.chat.completions.create(messages=[*HI, sent_back, result], **asked)
    assert tuner._recorder.turns[1].notes.continues


async def test_a_required_tool_is_called(ask):
    answer, [turn] = await ask(
        ' {"a": 7}}\n</tool_call>',
        tools=[ADD],
        tool_choice={"type": "function", "function": {"name": "add"}},
    )
    assert answer.choices[0].message.tool_calls[0].function.arguments == '{"a": 7}'
    assert turn.notes.opening.endswith('"arguments":')


async def test_a_developer_message_is_read_as_a_system_message(ask):
    _, [turn] = await ask(messages=[{"role": "developer", "content": "be brief"}, *HI])
    assert turn.messages[0] == {"role": "system", "content": "be brief"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format: the type is one of text"),
        ({"extra_body": {"structured_outputs": {"json": {}, "regex": "a"}}}, "takes one of json"),
        ({"top_logprobs": 2, "logprobs": True}, "top_logprobs is not served"),
        ({"frequency_penalty": 0.5}, "frequency_penalty is not served"),
        ({"logit_bias": {"5": 1}}, "logit_bias is not served"),
        ({"n": 0}, "n must be 1 to 128"),
        ({"n": True}, "n must be int, not bool"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"tools": [{"type": "function"}]}, "has no function with a name"),
        ({"tools": [ADD], "tool_choice": {"function": {"name": "sub"}}}, "there is no tool 'sub'"),
        ({"extra_body": {"chat_template_kwargs": []}}, "chat_template_kwargs must be dict"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "unknown role 'robot'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text"),
    ],
)
async def test_unsupported_chat_parameters_are_refused_in_one_line(ask, fields, said):
    with pytest.raises(openai.BadRequestError) as error:
        await ask(**fields)
    assert said in error.value.message and "\n" not in error.value.message
    assert error.value.type == "invalid_request_error"


async def test_a_limit_of_the_episode_is_a_context_error_and_no_repetition_follows(ask):
    with pytest.raises(openai.BadRequestError) as error:
        await ask(recorder={"max_prompt_length": 5})
    assert error.value.code == "context_length_exceeded"
    assert "max_prompt_length is 5" in error.value.message
    assert error.value.response.headers["x-should-retry"] == "false"


async def test_other_addresses_are_not_served(tuner_of):
    with pytest.raises(openai.NotFoundError, match="/v1/embeddings is not served"):
        await tuner_of().as_raw_openai_sdk_client().embeddings.create(model="m", input="x")
