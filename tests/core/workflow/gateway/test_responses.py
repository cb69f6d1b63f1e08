"""OpenAI's Responses API, through OpenAI's own client."""

import openai
import pytest

from tests.core.workflow.gateway.episode import CALL, HI

ADD = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}


async def test_text_in_text_out_with_instructions_and_true_usage(tuner_of):
    tuner = tuner_of("fine")
    response = await tuner.as_raw_openai_sdk_client().responses.create(
        model="m", input="hi", instructions="be brief"
    )
    [turn] = tuner._recorder.turns
    assert response.output_text == "fine" and response.status == "completed"
    assert turn.messages == [{"role": "system", "content": "be brief"}, *HI]
    assert response.usage.input_tokens == turn.num_prompt_tokens
    assert response.usage.output_tokens == 5


@pytest.mark.parametrize("stored", [True, False])
async def test_a_call_and_its_output_go_on_with_the_recorded_ids(tuner_of, stored):
    said = {"e/0000": f"Let me. {CALL}", "e/0001": "done"}
    tuner = tuner_of(lambda prompt, request_id: said[request_id])
    client = tuner.as_raw_openai_sdk_client()
    first = await client.responses.create(model="m", input="hi", tools=[ADD])
    text, call = first.output
    assert (text.type, call.type, call.name) == ("message", "function_call", "add")
    assert call.arguments == '{"a": 1}'
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "2"}
    if stored:
        asked = {"previous_response_id": first.id, "input": [output]}
    else:
        back = [item.model_dump(exclude_none=True) for item in first.output]
        asked = {"input": [*HI, *back, output]}
    second = await client.responses.create(model="m", tools=[ADD], **asked)
    assert second.output_text == "done"
    assert tuner._recorder.turns[1].notes.continues


async def test_instructions_are_for_one_request_alone(tuner_of):
    tuner = tuner_of("fine")
    client = tuner.as_raw_openai_sdk_client()
    first = await client.responses.create(model="m", input="hi", instructions="be brief")
    await client.responses.create(model="m", input="more", previous_response_id=first.id)
    assert [m["role"] for m in tuner._recorder.turns[1].messages] == ["user", "assistant", "user"]


async def test_a_stream_tells_the_response_in_order(tuner_of):
    client = tuner_of(f"Let me. {CALL}").as_raw_openai_sdk_client()
    stream = await client.responses.create(model="m", input="hi", tools=[ADD], stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type.removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert events[-1].response.output_text == "Let me."


async def test_a_reply_that_was_cut_is_incomplete(tuner_of):
    client = tuner_of("fine").as_raw_openai_sdk_client()
    response = await client.responses.create(model="m", input="hi", max_output_tokens=2)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tools": [{"type": "web_search"}]}, "only functions are served"),
        ({"text": {"format": {"type": "yaml"}}}, "response_format: the type is one of text"),
        ({"background": True}, "background is not served"),
        ({"input": [{"type": "computer_call"}]}, "'computer_call' are not served"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "'input_file'"),
    ],
)
async def test_unsupported_responses_parameters_are_refused_in_one_line(tuner_of, fields, said):
    client = tuner_of().as_raw_openai_sdk_client()
    with pytest.raises(openai.BadRequestError, match=said):
        await client.responses.create(**{"model": "m", "input": "hi", **fields})


async def test_a_refusal_is_text_of_the_assistants(tuner_of):
    tuner = tuner_of()
    refusal = {"type": "refusal", "refusal": "No clock."}
    items = [
        {"role": "user", "content": "time?"},
        {"type": "message", "role": "assistant", "content": [refusal]},
        {"role": "user", "content": "Why?"},
    ]
    await tuner.as_raw_openai_sdk_client().responses.create(model="m", input=items)
    [turn] = tuner._recorder.turns
    assert turn.messages[1] == {"role": "assistant", "content": "No clock."}


async def test_another_episodes_response_is_not_found(tuner_of):
    first = await tuner_of().as_raw_openai_sdk_client().responses.create(model="m", input="hi")
    other = tuner_of(episode_id="other").as_raw_openai_sdk_client()
    with pytest.raises(openai.NotFoundError, match="was given to this key"):
        await other.responses.create(model="m", input="more", previous_response_id=first.id)


async def test_a_tool_in_a_namespace_is_offered_by_its_name_and_called_with_the_namespace(tuner_of):
    tuner = tuner_of(lambda *_: CALL)
    client = tuner.as_raw_openai_sdk_client()
    space = {"type": "namespace", "name": "math", "description": "", "tools": [ADD]}
    response = await client.responses.create(
        model="m",
        input="hi",
        tools=[space],
        reasoning={"summary": "auto"},
        extra_body={"client_metadata": {"thread_id": "t"}},
    )
    (item,) = response.output
    assert (item.name, item.model_dump()["namespace"]) == ("add", "math")
    (turn,) = tuner._recorder.turns
    assert [tool["function"]["name"] for tool in turn.tools] == ["add"]


async def test_a_name_that_two_namespaces_have_is_refused(tuner_of):
    spaces = [{"type": "namespace", "name": name, "tools": [ADD]} for name in ("a", "b")]
    with pytest.raises(openai.BadRequestError, match="'add' is there twice, in a namespace"):
        await (
            tuner_of()
            .as_raw_openai_sdk_client()
            .responses.create(model="m", input="hi", tools=spaces)
        )
