"""A message means the same in a supervised row, in a row of a task, and over HTTP: every form of it
makes the prompt of the plain form with real templates, or is refused in one line."""

import functools

import openai
import pytest

from ajet.agents.given_chat import GivenChat
from ajet.agents.single_turn import first_messages
from ajet.core.errors import AjetError
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.task.chat_rows import chat_tasks
from ajet.core.task.reader import task_from_row
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.workflow.gateway.gateway import Gateway
from ajet.core.workflow.tuner import ModelTuner
from tests.fakes import chat_tokenizer, scripted_recorder

FAMILIES = (
    "qwen2_5",
    "qwen3_instruct_2507",
    "llama3_1",
    "mistral_args",
    "kimi_k2",
    "gemma4_v5",
)


def user(content):
    return {"role": "user", "content": content}


def calling(arguments, **fields):
    function = {"name": "now", "arguments": arguments}
    call = {"id": "call_1_0", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call], **fields}


def former(arguments, **fields):
    call = {"name": "now", "arguments": arguments}
    return {"role": "assistant", "content": None, "function_call": call, **fields}


def said(who, value):
    return {"from": who, "value": value}


TIME, ZONE, NEXT = user("time?"), '{"zone": "UTC"}', user("And in Oslo?")
RESULT = {"role": "tool", "tool_call_id": "call_1_0", "content": "12:00"}
FORMER_RESULT = {"role": "function", "name": "now", "content": "12:00"}
BARE = {"id": "call_1_0", "name": "now", "arguments": {"zone": "UTC"}}
REPLY = {"role": "assistant", "content": "13:00"}

WITH_ZONE = [TIME, calling({"zone": "UTC"}), RESULT, NEXT]
WITHOUT = [TIME, calling({}), RESULT, NEXT]
SYSTEM = [{"role": "system", "content": "Be brief."}, TIME]
SHAREGPT_CALL = said("function_call", '{"name": "now", "arguments": {"zone": "UTC"}}')
SHAREGPT_CALLS = said("function_call", '[{"name": "now", "arguments": {"zone": "UTC"}}]')

FORMS = {
    "JSON text": ([TIME, calling(ZONE), RESULT, NEXT], WITH_ZONE),
    "former call and result": ([TIME, former(ZONE), FORMER_RESULT, NEXT], WITH_ZONE),
    "former call, a tool's result": ([TIME, former({"zone": "UTC"}), RESULT, NEXT], WITH_ZONE),
    "both, the same call": (
        [TIME, calling(ZONE, function_call=former(ZONE)["function_call"]), RESULT, NEXT],
        WITH_ZONE,
    ),
    "a call without its function": (
        [TIME, calling(None, tool_calls=[BARE]), RESULT, NEXT],
        WITH_ZONE,
    ),
    "fields that are null": (
        [
            TIME | {"tool_calls": None, "function_call": None, "name": None},
            calling(ZONE, function_call=None),
            RESULT | {"tool_calls": None},
            NEXT,
        ],
        WITH_ZONE,
    ),
    "no arguments": ([TIME, calling(""), RESULT, NEXT], WITHOUT),
    "blank arguments": ([TIME, calling(" \n"), RESULT, NEXT], WITHOUT),
    "arguments null": ([TIME, calling(None), RESULT, NEXT], WITHOUT),
    "arguments null as text": ([TIME, calling("null"), RESULT, NEXT], WITHOUT),
    "a former call without arguments": ([TIME, former(""), FORMER_RESULT, NEXT], WITHOUT),
    "parts": (
        [TIME, user([{"type": "text", "text": "And "}, {"type": "text", "text": "in Oslo?"}])],
        [TIME, NEXT],
    ),
    "parts, one of null": (
        [TIME, user([{"type": "text", "text": "And in Oslo?"}, {"type": "text", "text": None}])],
        [TIME, NEXT],
    ),
    "a refusal": (
        [TIME, {"role": "assistant", "content": None, "refusal": "No clock."}, NEXT],
        [TIME, {"role": "assistant", "content": "No clock."}, NEXT],
    ),
    "a part that is a refusal": (
        [TIME, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, NEXT],
        [TIME, {"role": "assistant", "content": "No."}, NEXT],
    ),
    "a developer's message": ([SYSTEM[0] | {"role": "developer"}, TIME], SYSTEM),
}
SHAREGPT = {
    "one call": (
        [said("human", "time?"), SHAREGPT_CALL, said("observation", "12:00"), NEXT],
        WITH_ZONE,
    ),
    "a list of calls": (
        [said("human", "time?"), SHAREGPT_CALLS, said("tool", "12:00"), NEXT],
        WITH_ZONE,
    ),
    "a former call": (
        [said("user", "time?"), said("gpt", None) | former(ZONE), FORMER_RESULT, NEXT],
        WITH_ZONE,
    ),
    "a system message": ([said("system", "Be brief."), said("human", "time?")], SYSTEM),
}
SOUND = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
REFUSED = {
    "a sound": ([user([{"type": "text", "text": "What?"}, SOUND])], "its part 2 is of type"),
    "a video in a column of structs": (
        [user([{"type": "video", "text": None, "video": "a.mp4"}])],
        "its part 1 is of type 'video'",
    ),
    "a former call without a name": (
        [TIME, {"role": "assistant", "function_call": {"arguments": "{}"}}, NEXT],
        "[1]: function_call has no function with a name",
    ),
    "two different calls": (
        [TIME, calling("{}", function_call={"name": "then"}), NEXT],
        "[1]: has function_call and other tool_calls; keep one of them",
    ),
    "a former call of the user's": (
        [TIME | {"function_call": {"name": "now"}}],
        "[0]: function_call belongs to an assistant's message",
    ),
    "content and a refusal": (
        [TIME, {"role": "assistant", "content": "12:00", "refusal": "No clock."}, NEXT],
        "[1] has content and a refusal; keep one of them",
    ),
    "calls as text": ([TIME, calling("", tool_calls="[]"), NEXT], "[1].tool_calls must be a list"),
    "a call without a name": (
        [TIME, calling("", tool_calls=[{"id": "a"}]), NEXT],
        "[1]: a tool call has no function with a name",
    ),
    "an unknown role": ([{"role": "robot", "content": "a"}, TIME], "[0]: unknown role 'robot'"),
    "content that is a number": ([user(3)], "[0]: content must be text or a list of parts"),
}


@functools.cache
def template_of(family):
    return ChatTemplate(chat_tokenizer(family))


def tuner_of(family, gateway=None, reply="ok"):
    template = template_of(family)
    return ModelTuner(scripted_recorder(template, reply), gateway=gateway)


def turns_of(tuner):
    return [(each.prompt_ids, each.token_ids) for each in tuner.completions]


async def supervised(family, row):
    [task] = chat_tasks([row], split="train", source="d", train_on="all")
    tuner = tuner_of(family)
    await GivenChat().execute(WorkflowTask(task, "e", "g-0", 0, 0, "train", 0), tuner)
    return turns_of(tuner)


async def reinforced(family, row):
    tuner = tuner_of(family)
    task = task_from_row(row, 0, split="train", source="d")
    await tuner.chat(first_messages(task, None))
    return list(tuner.completions[-1].prompt_ids)


async def over_http(family, messages):
    gateway = Gateway()
    try:
        tuner = tuner_of(family, gateway)
        client = tuner.as_raw_openai_sdk_client()
        await client.chat.completions.create(model="any", messages=messages)
        return list(tuner.completions[-1].prompt_ids)
    finally:
        gateway.close()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", FORMS)
async def test_each_form_is_the_same_prompt_wherever_it_comes_from(family, form):
    given, plain = FORMS[form]
    expected = template_of(family).prompt_ids(plain)
    assert await over_http(family, given) == expected
    assert await reinforced(family, {"prompt": given}) == expected
    as_given = await supervised(family, {"messages": [*given, REPLY]})
    assert as_given == await supervised(family, {"messages": [*plain, REPLY]})
    assert template_of(family).decode(as_given[-1][1]).strip() == "13:00"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", SHAREGPT)
async def test_a_row_of_sharegpt_is_the_same_prompt_and_http_refuses_it(family, form):
    given, plain = SHAREGPT[form]
    expected = template_of(family).prompt_ids(plain)
    assert await reinforced(family, {"prompt": given}) == expected
    row = {"conversations": [*given, said("gpt", "13:00")]}
    assert await supervised(family, row) == await supervised(family, {"messages": [*plain, REPLY]})
    with pytest.raises(openai.BadRequestError, match=r"messages\[0\]: unknown role"):
        await over_http(family, given)


@pytest.mark.parametrize("form", REFUSED)
async def test_a_message_without_a_plain_form_is_refused_in_one_line(form):
    given, reason = REFUSED[form]
    with pytest.raises(openai.BadRequestError) as http:
        await over_http("qwen2_5", given)
    with pytest.raises(AjetError) as row:
        await reinforced("qwen2_5", {"prompt": given})
    with pytest.raises(AjetError) as given_reply:
        await supervised("qwen2_5", {"messages": [*given, REPLY]})
    for error in (http.value.body["message"], str(row.value), str(given_reply.value)):
        assert reason in error and "\n" not in error


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_call_is_trained_whichever_of_its_forms_the_row_has(family):
    chats = [[TIME, former(ZONE)], [TIME, calling({"zone": "UTC"})]]
    [[(_, ids)], [(_, expected)]] = [await supervised(family, {"messages": c}) for c in chats]
    assert ids == expected
    assert "UTC" in template_of(family).text_of(ids)


async def test_a_call_without_arguments_that_comes_back_continues_the_conversation():
    reply = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    for sent_back in ("", " ", None, "{}", {}):
        tuner = tuner_of("qwen2_5", reply=reply)
        tool = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
        first = await tuner.chat([TIME], [tool])
        [call] = first["tool_calls"]
        call["function"]["arguments"] = sent_back
        result = RESULT | {"tool_call_id": call["id"]}
        await tuner.chat([TIME, dict(first), result], [tool])
        assert tuner._recorder.turns[1].notes.continues


SYSTEM_COLUMN = [
    {"conversations": [said("human", "time?"), said("gpt", "13:00")]},
    {"messages": [TIME, REPLY]},
    {"prompt": "time?", "completion": "13:00"},
    {"instruction": "time?", "input": "", "output": "13:00"},
]


@pytest.mark.parametrize("row", SYSTEM_COLUMN)
async def test_the_column_system_is_the_system_message(row):
    expected = await supervised("qwen2_5", {"messages": [*SYSTEM, REPLY]})
    assert await supervised("qwen2_5", {**row, "system": "Be brief."}) == expected
    assert await supervised("qwen2_5", {**row, "system": " "}) == await supervised("qwen2_5", row)


@pytest.mark.parametrize("prompt", ["time?", [TIME], SYSTEM])
async def test_the_column_system_is_that_of_a_task_too(prompt):
    row = {"prompt": prompt, "system": "Be brief."}
    assert await reinforced("qwen2_5", row) == template_of("qwen2_5").prompt_ids(SYSTEM)


async def test_two_different_system_texts_are_refused():
    row = {"messages": [*SYSTEM, REPLY], "prompt": SYSTEM, "system": "Be long."}
    for play in (supervised, reinforced):
        with pytest.raises(AjetError, match=r"row 1: system and a system message .* differ"):
            await play("qwen2_5", row)
