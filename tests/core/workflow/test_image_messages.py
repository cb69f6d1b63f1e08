"""Images in the messages of frameworks, client libraries and HTTP requests reach the recorder as
parts, and no form of a message loses one."""

import base64

import httpx
import pytest

from ajet import ModelTuner
from ajet.core.images.forms import find_image
from ajet.core.images.image import ImageLimits
from ajet.core.workflow.gateway.gateway import Gateway
from tests.seeing_recorder import SeeingRecorder, png

DATA = base64.b64encode(png()).decode()
URL = f"data:image/png;base64,{DATA}"
PART = {"type": "image_url", "image_url": {"url": URL}}
TEXT = {"type": "text", "text": "What?"}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "look", "arguments": "{}"},
}


@pytest.fixture
def tuner():
    gateway = Gateway()
    yield ModelTuner(SeeingRecorder("red"), gateway=gateway)
    gateway.close()


def contents(tuner):
    return [message.get("content") for message in tuner._recorder.seen[-1]]


def images(content):
    """Returns the bytes of the images, which the recorder takes from the parts."""
    limits = ImageLimits()
    return [find_image(part, limits).data for part in content if "text" not in part["type"]]


async def test_the_tuner_passes_parts(tuner):
    reply = await tuner.chat([{"role": "user", "content": [TEXT, PART]}])
    assert reply["content"] == "red"
    assert contents(tuner) == [[TEXT, PART]]


async def test_openais_client_passes_parts_of_users_and_tools(tuner):
    messages = [
        {"role": "user", "content": [PART, TEXT]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": [TEXT, PART]},
    ]
    client = tuner.as_raw_openai_sdk_client()
    await client.chat.completions.create(model="m", messages=messages)
    first, _, last = contents(tuner)
    assert (first, last) == ([PART, TEXT], [TEXT, PART])


async def post(tuner, path, **body):
    base_url, key = tuner.as_oai_baseurl_apikey()
    async with httpx.AsyncClient(timeout=30) as client:
        headers = {"authorization": f"Bearer {key}"}
        answer = await client.post(
            f"{base_url}{path}", json={"model": "m", **body}, headers=headers
        )
    assert answer.status_code == 200, answer.text


async def test_chat_completions_over_http(tuner):
    await post(tuner, "/chat/completions", messages=[{"role": "user", "content": [TEXT, PART]}])
    assert contents(tuner) == [[TEXT, PART]]


async def test_responses_over_http(tuner):
    image = {"type": "input_image", "image_url": URL, "detail": "auto"}
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    output = [{"type": "input_text", "text": "Here."}, image]
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "What?"}, image]},
        call,
        {"type": "function_call_output", "call_id": "c1", "output": output},
    ]
    await post(tuner, "/responses", input=items)
    first, _, last = contents(tuner)
    assert first == [TEXT, image]
    assert last == [{"type": "text", "text": "Here."}, image]
    assert images(first) == images(last) == [png()]


async def test_anthropics_messages_over_http(tuner):
    source = {"type": "base64", "media_type": "image/png", "data": DATA}
    image = {"type": "image", "source": source}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [TEXT, image]}
    messages = [
        {"role": "user", "content": [image, TEXT]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look"}]},
        {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
    ]
    await post(tuner, "/messages", max_tokens=9, messages=messages)
    assert [m["role"] for m in tuner._recorder.seen[-1]] == ["user", "assistant", "tool", "user"]
    assert contents(tuner)[0] == [image, TEXT]
    assert contents(tuner)[2:] == [[TEXT, image], "And?"]
    assert images(contents(tuner)[0]) == [png()]


LANGCHAIN = [
    PART,
    {"type": "image", "base64": DATA, "mime_type": "image/png"},
    {"type": "image", "source_type": "base64", "data": DATA, "mime_type": "image/png"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
]


@pytest.mark.parametrize("block", LANGCHAIN)
async def test_langchains_blocks_become_openais_parts(tuner, block):
    messages = pytest.importorskip("langchain_core.messages")
    call = {"name": "look", "args": {}, "id": "c1"}
    asked = [
        messages.HumanMessage([TEXT, block]),
        messages.AIMessage("", tool_calls=[call]),
        messages.ToolMessage([TEXT, block], tool_call_id="c1"),
    ]
    await tuner.as_langchain_model().ainvoke(asked)
    first, _, last = contents(tuner)
    assert first == last == [TEXT, PART]


@pytest.mark.parametrize("name", ["OpenAIChatFormatter", "DashScopeChatFormatter"])
async def test_agentscopes_formatters(tuner, name):
    formatters = pytest.importorskip("agentscope.formatter")
    from agentscope.message import Base64Source, ImageBlock, Msg, TextBlock

    source = Base64Source(type="base64", media_type="image/png", data=DATA)
    blocks = [TextBlock(type="text", text="What?"), ImageBlock(type="image", source=source)]
    formatted = await getattr(formatters, name)().format([Msg("user", blocks, "user")])
    await tuner.as_agentscope_model()(formatted)
    [[text, image]] = contents(tuner)
    assert (text["text"], image) == ("What?", PART)
