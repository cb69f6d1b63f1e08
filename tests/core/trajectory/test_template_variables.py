"""Variables of the chat template, as a call or the run sets them."""

import json

import openai
import pytest
from loguru import logger

from ajet.core.errors import ConfigError
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.model.tokenizer import set_template_variables
from ajet.core.trajectory.base_recorder import SamplingOverrides
from ajet.core.trajectory.recorder import EpisodeRecorder
from ajet.core.trajectory.turn import TurnNotes
from ajet.core.workflow.gateway.gateway import Gateway
from ajet.core.workflow.tuner import ModelTuner
from tests.fakes import ScriptedEndpoint, chat_tokenizer, recorder_parts

HI = [{"role": "user", "content": "hi"}]
PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
NO_THINKING = "<think>\n\n</think>\n\n"  # what Qwen3's template adds for enable_thinking=false
OFF = {"enable_thinking": False}


def recorder(tokenizer=None):
    tokenizer = tokenizer or chat_tokenizer("qwen3")
    template = ChatTemplate(tokenizer)
    endpoint = ScriptedEndpoint(tokenizer, lambda *_: "ok")
    return EpisodeRecorder(**recorder_parts(endpoint, template, check_drift=True))


def prompts(episode):
    return [episode.template.text_of(turn.completion.prompt_ids) for turn in episode.turns]


async def test_a_call_without_thinking_has_the_templates_prompt_for_it():
    episode = recorder()
    tuner = ModelTuner(episode)
    await tuner.chat(HI)
    await tuner.chat(HI, chat_template_kwargs=OFF)
    await tuner.chat(HI)
    assert prompts(episode) == [PROMPT, PROMPT + NO_THINKING, PROMPT]
    assert [turn.notes.chat_template_kwargs for turn in episode.turns] == [{}, OFF, {}]
    assert TurnNotes.from_json(episode.turns[1].notes.as_json()) == episode.turns[1].notes


async def test_a_conversation_continues_its_ids_as_long_as_the_variables_are_the_same():
    episode = recorder(chat_tokenizer("qwen3_instruct_2507"))  # writes no thinking: it only grows
    tuner = ModelTuner(episode)
    kwargs = [{"mine": 1}, {"mine": 1}, {"mine": 2}]
    messages = list(HI)
    for each in kwargs:
        reply = await tuner.chat(messages, chat_template_kwargs=each)
        messages = [*messages, reply, {"role": "user", "content": "and?"}]
    assert [turn.notes.continues for turn in episode.turns] == [False, True, False]
    restored = recorder(chat_tokenizer("qwen3_instruct_2507"))
    restored.restore(dict(enumerate(episode.turns[:1])))
    second = [*episode.turns[1].messages]
    await ModelTuner(restored).chat(second, chat_template_kwargs={"mine": 1})
    assert restored.turns[1].notes.continues


async def test_the_field_of_openais_clients_reaches_the_template():
    gateway = Gateway()
    episode = recorder()
    client = ModelTuner(episode, gateway=gateway).as_raw_openai_sdk_client()
    await client.chat.completions.create(messages=HI, extra_body={"chat_template_kwargs": OFF})
    assert prompts(episode) == [PROMPT + NO_THINKING]
    with pytest.raises(openai.BadRequestError, match=r"chat_template_kwargs\.tools: the request"):
        await client.chat.completions.create(
            messages=HI, extra_body={"chat_template_kwargs": {"tools": []}}
        )
    gateway.close()


@pytest.mark.parametrize(
    ("kwargs", "problem"),
    [
        ({"enable_thinking": object()}, "is not JSON"),
        ({"a": float("nan")}, "is not JSON"),
        ("enable_thinking", "is not an object"),
        ({"a": "x" * 10_000}, "is not an object of 10000 characters"),
        ({"messages": []}, "chat_template_kwargs.messages: the request itself says this"),
    ],
)
def test_what_is_not_json_or_is_said_by_the_request_is_refused(kwargs, problem):
    with pytest.raises(ValueError, match=problem):
        SamplingOverrides(chat_template_kwargs=kwargs)


async def test_a_variable_that_the_template_does_not_read_is_warned_of_once():
    lines = []
    sink = logger.add(lines.append, format="{message}")
    tuner = ModelTuner(recorder())
    for _ in range(2):
        await tuner.chat(HI, chat_template_kwargs={"enable_thinkin": False})
    logger.remove(sink)
    [line] = lines
    assert "chat_template_kwargs.enable_thinkin, which this model's chat template does not" in line


async def test_a_runs_variables_are_part_of_its_template_and_a_call_may_replace_them(tmp_path):
    tokenizer = chat_tokenizer("qwen3")
    set_template_variables(tokenizer, OFF)
    tokenizer.save_pretrained(tmp_path)  # as in a run folder, or an exported model
    saved = type(tokenizer).from_pretrained(tmp_path)
    episode = recorder(saved)
    tuner = ModelTuner(episode)
    await tuner.chat(HI)
    await tuner.chat(HI, chat_template_kwargs={"enable_thinking": True})
    assert prompts(episode) == [PROMPT + NO_THINKING, PROMPT]
    assert saved.apply_chat_template(HI, tokenize=False, add_generation_prompt=True).endswith(
        NO_THINKING
    )


def test_values_of_every_json_type_arrive_unchanged():
    tokenizer = chat_tokenizer("qwen3")
    values = {"a": None, "b": [1, 2.5, "x'\"\n%}{{ä"], "c": {"d": True}}
    names = "".join(f"{{{{ {name} | tojson }}}};" for name in values)
    tokenizer.chat_template = names
    set_template_variables(tokenizer, values)
    text = tokenizer.apply_chat_template(HI, tokenize=False)
    assert [json.loads(part) for part in text.split(";")[:3]] == list(values.values())


@pytest.mark.parametrize("name", ["enable_thinkin", "messages"])
def test_a_runs_variable_that_the_template_does_not_read_is_one_line(name):
    with pytest.raises(ConfigError, match=rf"chat_template_kwargs\.{name}: .* no such"):
        set_template_variables(chat_tokenizer("qwen3"), {name: False})
