"""Anthropic's Messages API, through Anthropic's own client over HTTP."""

from importlib import import_module

import pytest

from tests.core.workflow.gateway.episode import CALL, HI

ADD = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def anthropic():
    """The package, imported where its tests run and not wherever this file is collected."""
    return import_module("anthropic")


@pytest.fixture
async def client_of(anthropic):
    """``client_of(tuner)``: Anthropic's client at the tuner's address."""
    clients = []

    def client_of(tuner):
        base_url, key = tuner.as_oai_baseurl_apikey().anthropic
        clients.append(anthropic.AsyncAnthropic(base_url=base_url, api_key=key))
        return clients[-1]

    yield client_of
    for client in clients:
        await client.close()


async def test_text_in_text_out_with_true_usage(tuner_of, client_of):
    tuner = tuner_of("fine")
    asked = {"model": "m", "max_tokens": 50, "system": "be brief", "messages": HI}
    answer = await client_of(tuner).messages.create(**asked)
    [turn] = tuner._recorder.turns
    assert [block.text for block in answer.content] == ["fine"]
    assert (answer.stop_reason, answer.usage.output_tokens) == ("end_turn", 5)
    assert answer.usage.input_tokens == turn.num_prompt_tokens
    assert turn.messages == [{"role": "system", "content": "be brief"}, *HI]


async def test_a_tool_use_and_its_result_go_on_with_the_recorded_ids(tuner_of, client_of):
    said = {"e/0000": f"Let me. {CALL}", "e/0001": "done"}
    tuner = tuner_of(lambda prompt, request_id: said[request_id])
    asked = {"model": "m", "max_tokens": 99, "tools": [ADD]}
    client = client_of(tuner)
    first = await client.messages.create(messages=HI, **asked)
    text, use = first.content
    assert (first.stop_reason, text.text) == ("tool_use", "Let me.")
    assert (use.name, use.input) == ("add", {"a": 1})
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "2"}
    back = {"role": "assistant", "content": [block.model_dump() for block in first.content]}
    again = [*HI, back, {"role": "user", "content": [result]}]
    second = await client.messages.create(messages=again, **asked)
    assert second.content[0].text == "done"
    assert tuner._recorder.turns[1].notes.continues


async def test_a_stream_adds_up_to_the_message(tuner_of, client_of):
    asked = {"model": "m", "max_tokens": 99, "messages": HI, "tools": [ADD]}
    async with client_of(tuner_of(f"Let me. {CALL}")).messages.stream(**asked) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        message = await stream.get_final_message()
    assert text == "Let me."
    assert (message.stop_reason, message.content[1].input) == ("tool_use", {"a": 1})
    assert message.usage.output_tokens > 0


async def test_a_stop_sequence_is_named(tuner_of, client_of):
    asked = {"model": "m", "max_tokens": 50, "messages": HI, "stop_sequences": ["END"]}
    answer = await client_of(tuner_of("one END two")).messages.create(**asked)
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "END")
    assert answer.content[0].text == "one "


async def test_any_tool_may_be_required(tuner_of, client_of):
    tuner = tuner_of(" {}}\n</tool_call>")
    asked = {"model": "m", "max_tokens": 99, "messages": HI, "tools": [ADD]}
    answer = await client_of(tuner).messages.create(tool_choice={"type": "any"}, **asked)
    assert answer.content[0].type == "tool_use"
    assert tuner._recorder.turns[0].notes.opening


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "the provider's own"),
        (
            {"messages": [*HI, {"role": "assistant", "content": "I"}]},
            "must not end with the assistant's",
        ),
        ({"tool_choice": {"type": "tool", "name": "sub"}}, "there is no tool 'sub'"),
        ({"output_config": {"format": {"type": "yaml"}}}, "response_format: the type is one of"),
        ({"output_config": {"voice": "low"}}, "output_config.voice is not served"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking is not served"),
        ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "'file' is not served"),
    ],
)
async def test_unsupported_messages_parameters_are_refused_in_one_line(
    tuner_of, client_of, anthropic, fields, said
):
    asked = {"model": "m", "max_tokens": 9, "messages": HI, **fields}
    with pytest.raises(anthropic.BadRequestError, match=said):
        await client_of(tuner_of()).messages.create(**asked)


async def test_anthropics_tool_runner_goes_on_with_the_recorded_ids(tuner_of, client_of, anthropic):
    said = {"e/0000": CALL, "e/0001": "It is 2."}
    tuner = tuner_of(lambda prompt, request_id: said[request_id])

    @anthropic.beta_async_tool
    async def add(a: int) -> str:
        """Adds."""
        return str(a + 1)

    runner = client_of(tuner).beta.messages.tool_runner(
        model="m", max_tokens=99, messages=HI, tools=[add], thread=False
    )
    last = await runner.until_done()
    assert last.content[0].text == "It is 2."
    assert tuner._recorder.turns[1].notes.continues


async def test_a_forged_key_is_refused_in_anthropics_words(tuner_of, anthropic):
    base_url, _ = tuner_of().as_oai_baseurl_apikey().anthropic
    forged = anthropic.AsyncAnthropic(base_url=base_url, api_key="sk-ajet-" + "0" * 32)
    with pytest.raises(anthropic.AuthenticationError) as error:
        await forged.messages.create(model="m", max_tokens=9, messages=HI)
    assert error.value.body["error"]["type"] == "authentication_error"
    await forged.close()


async def test_what_claude_code_sends_as_hints_and_system_messages_among_the_others_is_served(
    tuner_of, client_of
):
    tuner = tuner_of("fine")
    system = {"role": "system", "content": [{"type": "text", "text": "Today is Monday."}]}
    asked = {"model": "m", "max_tokens": 50, "messages": [*HI, system]}
    await client_of(tuner).messages.create(**asked, output_config={"effort": "high"})
    (turn,) = tuner._recorder.turns
    assert turn.messages == [*HI, {"role": "system", "content": "Today is Monday."}]
