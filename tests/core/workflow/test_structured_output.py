"""Structured output through every client. The model is random: only a grammar makes sense of it."""

import json

import pytest
from pydantic import BaseModel, Field

from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.trajectory.limits import EpisodeLimits
from ajet.core.trajectory.recorder import EpisodeRecorder
from ajet.core.trajectory.reply_grammars import ReplyGrammars
from ajet.core.trajectory.samples import timelines
from ajet.core.workflow.gateway.gateway import Gateway
from ajet.core.workflow.tuner import ModelTuner
from ajet.engines.in_process import InProcessEngine
from ajet.tool_parsers import parser_for
from tests.fakes import chat_tokenizer, recorder_parts

TEMPLATE = ChatTemplate(chat_tokenizer("qwen2_5"))
HI = [{"role": "user", "content": "How warm is it?"}]


class Weather(BaseModel):
    """The weather."""

    city: str = Field(max_length=6)
    degrees: int = Field(ge=-20, le=40)


SCHEMA = Weather.model_json_schema()
TOOL = {
    "type": "function",
    "function": {"name": "report", "parameters": SCHEMA, "strict": True},
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def model():
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(TEMPLATE.tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return Qwen2ForCausalLM(config)


@pytest.fixture
async def tuner(model):
    engine = InProcessEngine(
        model, stop_token_ids=TEMPLATE.stop_token_ids, grammars=TEMPLATE.grammars
    )
    limits = EpisodeLimits(max_response_length_in_one_turn=200)
    recorder = EpisodeRecorder(**recorder_parts(engine, TEMPLATE, limits=limits))
    gateway = Gateway()
    yield ModelTuner(recorder, gateway=gateway)
    gateway.close()
    await engine.close()


def turn_of(tuner):
    """The episode's only turn, which can be trained under its grammar."""
    [turn] = tuner._recorder.turns
    assert turn.notes.grammar and turn.completion.finish_reason == "stop"
    [sample] = timelines([turn], grammars=TEMPLATE.grammars)
    assert sample.masks.num_restricted == len(turn.completion.token_ids)
    return turn


async def test_chat_completions(tuner):
    client = tuner.as_raw_openai_sdk_client()
    answer = await client.chat.completions.create(messages=HI, response_format=FORMAT)
    Weather.model_validate_json(answer.choices[0].message.content)
    turn_of(tuner)


async def test_openais_own_parser(tuner):
    client = tuner.as_raw_openai_sdk_client()
    answer = await client.chat.completions.parse(model="m", messages=HI, response_format=Weather)
    assert isinstance(answer.choices[0].message.parsed, Weather)
    assert turn_of(tuner).tools is None


@pytest.mark.parametrize(
    ("fields", "check"),
    [
        ({"json": SCHEMA}, Weather.model_validate_json),
        ({"regex": "[0-9]{4}-[0-9]{2}"}, lambda text: [int(part) for part in text.split("-")]),
        ({"choice": ["warm", "cold"]}, ["warm", "cold"].index),
        ({"grammar": 'start: "it is " /[0-9]/'}, lambda text: int(text.removeprefix("it is "))),
    ],
)
async def test_the_forms_of_vllms_clients(tuner, fields, check):
    client = tuner.as_raw_openai_sdk_client()
    answer = await client.chat.completions.create(
        messages=HI, extra_body={"structured_outputs": fields}
    )
    check(answer.choices[0].message.content)
    turn_of(tuner)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "report"}}]
)
async def test_a_forced_strict_tool(tuner, choice):
    client = tuner.as_raw_openai_sdk_client()
    answer = await client.chat.completions.create(messages=HI, tools=[TOOL], tool_choice=choice)
    [call] = answer.choices[0].message.tool_calls
    Weather.model_validate_json(call.function.arguments)
    turn = turn_of(tuner)
    assert "strict" not in turn.tools[0]["function"]  # the model does not read it
    assert not turn.notes.malformed_calls


async def test_the_responses_api(tuner):
    client = tuner.as_raw_openai_sdk_client()
    answer = await client.responses.parse(model="m", input="How warm?", text_format=Weather)
    assert isinstance(answer.output_parsed, Weather)
    turn_of(tuner)


async def test_anthropics_messages(tuner):
    anthropic = pytest.importorskip("anthropic")
    base_url, key = tuner.as_oai_baseurl_apikey().anthropic
    client = anthropic.AsyncAnthropic(base_url=base_url, api_key=key)
    answer = await client.messages.create(
        model="m",
        max_tokens=200,
        messages=HI,
        extra_body={"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    )
    assert json.loads(answer.content[0].text).keys() >= {"city", "degrees"}
    turn_of(tuner)
    await client.close()


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
async def test_langchain(tuner, method):
    pytest.importorskip("langchain_core")
    model = tuner.as_langchain_model().with_structured_output(Weather, method=method)
    assert isinstance(await model.ainvoke("How warm?"), Weather)
    turn_of(tuner)


async def test_langchains_raw_answer_comes_with_the_parsed_one(tuner):
    pytest.importorskip("langchain_core")
    model = tuner.as_langchain_model()
    model = model.with_structured_output(Weather, method="json_schema", include_raw=True)
    answer = await model.ainvoke("How warm?")
    assert answer["parsed"] == Weather.model_validate_json(answer["raw"].content)
    assert answer["parsing_error"] is None


async def test_agentscope(tuner):
    pytest.importorskip("agentscope")
    response = await tuner(HI, structured_model=Weather)
    Weather.model_validate(response.metadata)
    turn_of(tuner)


async def test_plain_calls(tuner):
    reply = await tuner.chat(HI, response_format={"type": "choice", "choice": ["a", "b"]})
    assert reply["content"] in ("a", "b")
    turn_of(tuner)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"type": "yaml"}, "the type is one of text, json_object"),
        ({"type": "json_schema"}, "json_schema must hold a schema"),
        ({"type": "choice", "choice": []}, "choice must be a list of texts"),
        ({"type": "regex", "regex": "(a"}, "is not possible"),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "colour"}}}, "not possible"),
        (float("nan"), "response_format is not JSON"),
    ],
)
async def test_a_format_that_is_not_possible_is_one_line(tuner, form, message):
    with pytest.raises(ValueError, match=message) as raised:
        await tuner.chat(HI, response_format=form)
    assert "\n" not in str(raised.value)


async def test_the_grammar_of_a_reply_that_was_cut_is_kept(tuner):
    reply = await tuner.chat(HI, response_format=FORMAT, max_tokens=5)
    [turn] = tuner._recorder.turns
    assert turn.is_cut and reply["content"] == '{"cit'
    [sample] = timelines([turn], grammars=TEMPLATE.grammars)
    assert sample.masks.num_restricted == 5


async def test_a_strict_tool_is_shown_to_the_model_like_any_other(tuner):
    loose = {**TOOL, "function": {k: v for k, v in TOOL["function"].items() if k != "strict"}}
    recorder = tuner._recorder
    assert recorder.num_prompt_tokens(HI, [TOOL]) == recorder.num_prompt_tokens(HI, [loose])
    await tuner.chat(HI, [TOOL], max_tokens=4)
    assert len(recorder.turns[0].completion.prompt_ids) == recorder.num_prompt_tokens(HI, [loose])
    given = await tuner.give(HI, {"role": "assistant", "content": "Warm."}, [TOOL])
    assert given.prompt_ids == recorder.turns[0].completion.prompt_ids


async def test_the_warning_of_a_family_without_a_grammar_comes_once_in_a_process(warnings):
    template = ChatTemplate(chat_tokenizer("glm4moe"))
    for _ in range(3):
        grammars = ReplyGrammars(template, parser_for(template))
        assert grammars.grammar([1], None, [TOOL["function"]]) == ""
    assert sum("arguments are sampled freely" in line for line in warnings) == 1
