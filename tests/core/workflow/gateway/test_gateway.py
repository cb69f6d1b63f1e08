"""The gateway over HTTP: keys, bad requests, clients that hang up, many episodes at once."""

import asyncio
import json
import random

import httpx
import openai
import pytest

from ajet.core.errors import ConfigError
from ajet.core.trajectory.limits import EpisodeClosed
from ajet.core.workflow.gateway import server
from ajet.core.workflow.gateway.gateway import Gateway
from ajet.core.workflow.gateway.keys import Grant
from tests.core.workflow.gateway.episode import HI, TOKENIZER, SlowEndpoint, recorder


async def post(address, body=None, key=None, path="/chat/completions"):
    """The raw answer to a request."""
    content = json.dumps({"model": "m", "messages": HI}) if body is None else body
    headers = {"authorization": f"Bearer {address.api_key if key is None else key}".encode()}
    # Without `verify`, each client would read the certificates of the system.
    async with httpx.AsyncClient(timeout=20, verify=False) as client:
        return await client.post(address.base_url + path, content=content, headers=headers)


async def test_a_key_has_128_random_bits_and_is_shown_by_no_repr(tuner_of, gateway):
    tuner = tuner_of()
    one, two = tuner.as_oai_baseurl_apikey(), tuner.as_oai_baseurl_apikey()
    assert one.api_key != two.api_key
    assert len(bytes.fromhex(one.api_key.removeprefix("sk-ajet-"))) == 16
    assert one.api_key not in repr(one) + repr(vars(gateway.keys))
    assert one.base_url.startswith("http://127.0.0.1:")


async def test_the_address_is_good_for_its_episode_and_agent_alone(tuner_of):
    red, blue = tuner_of("red"), tuner_of("blue", episode_id="blue")
    address = red.as_oai_baseurl_apikey(agent_name="solver", target_tag="t")
    assert (await post(address)).json()["choices"][0]["message"]["content"] == "red"
    [turn] = red._recorder.turns
    assert (turn.agent_name, turn.target_tag) == ("solver", "t")
    assert blue._recorder.turns == ()


async def test_the_server_has_limits_of_its_own(tuner_of):
    address = tuner_of().as_oai_baseurl_apikey()
    host, port = httpx.URL(address.base_url).host, httpx.URL(address.base_url).port
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\n" + b"x-many: 1\r\n" * 10_000)
    assert (await reader.readline()).startswith(b"HTTP/1.1 431 ")
    writer.close()


async def test_forged_foreign_and_dead_keys_are_unauthorized(tuner_of, gateway):
    tuner = tuner_of()
    address = tuner.as_oai_baseurl_apikey()
    elsewhere = Gateway()
    foreign = elsewhere.open(Grant(recorder())).api_key
    elsewhere.close()
    for key in ("x", "sk-ajet-" + "0" * 32, foreign, "ключ"):
        answer = await post(address, key=key)
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
    tuner.close()
    assert (await post(address)).status_code == 401
    assert len(gateway.keys) == 0


async def test_after_the_episode_no_key_is_given_out(tuner_of):
    tuner = tuner_of()
    tuner._recorder.close()
    with pytest.raises(EpisodeClosed):
        tuner.as_oai_baseurl_apikey()


async def test_a_request_under_way_when_the_episode_ends_is_refused(tuner_of):
    endpoint = SlowEndpoint()
    tuner = tuner_of(endpoint=endpoint)
    asked = asyncio.create_task(post(tuner.as_oai_baseurl_apikey()))
    await endpoint.asked.wait()
    tuner._recorder.close()
    endpoint.go.set()
    answer = await asked
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "episode_over")
    assert endpoint.aborted == ["e/0000"]


async def test_a_client_that_hangs_up_has_its_call_cancelled(tuner_of):
    endpoint = SlowEndpoint()
    asked = asyncio.create_task(post(tuner_of(endpoint=endpoint).as_oai_baseurl_apikey()))
    await endpoint.asked.wait()
    asked.cancel()
    while not endpoint.aborted:
        await asyncio.sleep(0.01)
    assert endpoint.aborted == ["e/0000"]


@pytest.mark.parametrize("body", ["", "[]", "{", '"text"', "{}", '{"messages": 3}', "[" * 100_000])
async def test_a_body_that_is_no_request_is_a_bad_request(tuner_of, body):
    answer = await post(tuner_of().as_oai_baseurl_apikey(), body=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def said(**message):
    return {"messages": [*HI, {"role": "assistant", **message}, *HI]}


def nested(depth):
    return {"x": nested(depth - 1)} if depth else 1


ODD = [
    ("/chat/completions", said(content="", tool_calls=["x"])),
    ("/chat/completions", said(content="", tool_calls={"a": 1})),
    ("/chat/completions", said(content="", tool_calls=[{"function": 5}])),
    ("/chat/completions", said(content=5)),
    ("/chat/completions", {"messages": HI, "tools": [5]}),
    ("/chat/completions", {"messages": HI, "tool_choice": {"function": "add"}}),
    ("/messages", {"messages": HI, "tool_choice": {"type": ["x"]}}),
    ("/messages", {"messages": [{"role": "user", "content": [5]}]}),
    ("/messages", {"messages": HI, "thread": True}),
    ("/responses", {"input": [{"type": "message", "role": "user", "content": 5}]}),
    ("/responses", {"input": "hi", "include": ["message.output_text.logprobs"]}),
    ("/responses", {"input": "hi", "tools": [{"type": "function"}]}),
]


@pytest.mark.parametrize(("path", "body"), ODD)
async def test_an_odd_body_is_refused_and_asks_nothing_of_the_model(tuner_of, path, body):
    tuner = tuner_of()
    answer = await post(tuner.as_oai_baseurl_apikey(), body=json.dumps(body), path=path)
    assert answer.status_code == 400 and answer.json()["error"]["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert tuner._recorder.turns == ()


DEEP = "[" * 20_000 + "]" * 20_000
MESSAGE = '{"role": "user", "content": "hi"}'
HOSTILE = [
    "\x00",
    '{"model": "m", "messages": ' + DEEP + "}",
    f'{{"model": "m", "messages": [{MESSAGE}], "metadata": {DEEP}}}',
    f'{{"model": "m", "messages": [{MESSAGE}], "seed": 1{"0" * 6000}}}',
    f'{{"model": "m", "messages": [{MESSAGE}], "seed": 1{"0" * 4000}}}',
    f'{{"model": "m", "messages": [{MESSAGE}], "temperature": 1e999}}',
    f'{{"model": "m", "messages": [{MESSAGE}], "temperature": NaN}}',
    f'{{"model": "m", "messages": [{MESSAGE}], "temperature": 1e-320}}',
    f'{{"model": "m", "messages": [{MESSAGE}], "top_p": -1}}',
    f'{{"model": "m", "messages": [{MESSAGE}], "max_tokens": 1{"0" * 4000}}}',
    f'{{"model": "m", "messages": [{MESSAGE}], "stop": ["\\ud800", ""]}}',
    f'{{"model": "m", "messages": [{MESSAGE}], "stop": [null]}}',
    '{"model": "m", "messages": [{"role": "user", "content": "\\ud800\\u0000"}]}',
    '{"model": "m", "messages": [{"role": "user", "content": [{"text": 1}]}]}',
    f'{{"model": "\\ud800", "messages": [{MESSAGE}]}}',
    f'{{"model": "m", "messages": [{{"role": "user", "content": "{"x" * 20_000_000}"}}]}}',
]
TOOL = {"type": "function", "function": {"name": "f", "parameters": nested(900)}}
HOSTILE.append(json.dumps({"messages": HI, "tools": [TOOL]}))


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/messages"])
async def test_a_hostile_body_is_an_answer_too(tuner_of, path):
    for body in HOSTILE:
        answer = await post(tuner_of().as_oai_baseurl_apikey(), body=body, path=path)
        assert answer.status_code in (200, 400) and answer.json(), body[:200]


async def test_a_stream_keeps_line_separators_and_split_characters_whole(tuner_of):
    told = "one\u2028two\u0085three"
    address = tuner_of(told).as_oai_baseurl_apikey()
    body = {"model": "\ud800", "messages": HI, "stream": True}
    answer = await post(address, body=json.dumps(body))
    lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines]
    assert "".join(delta.get("content", "") for delta in deltas) == told


async def test_answers_of_one_episode_have_ids_of_their_own(tuner_of):
    tuner = tuner_of("fine")
    clients = [tuner.as_raw_openai_sdk_client() for _ in range(2)]
    first, other = [await c.responses.create(model="m", input="hi") for c in clients]
    assert first.id != other.id
    await clients[1].responses.create(model="m", input="go on", previous_response_id=first.id)
    assert tuner._recorder.turns[2].notes.continues


async def test_choices_that_pass_the_limit_are_not_begun(tuner_of):
    tuner = tuner_of(max_steps=2)
    client = tuner.as_raw_openai_sdk_client()
    with pytest.raises(openai.BadRequestError, match="max_steps"):
        await client.chat.completions.create(model="m", messages=HI, n=3)
    assert tuner._recorder.turns == ()


async def test_a_body_over_the_limit_is_refused(tuner_of, monkeypatch):
    monkeypatch.setattr(server, "MAX_BODY_BYTES", 1000)
    address = tuner_of().as_oai_baseurl_apikey()
    assert (await post(address, body="x" * 1001)).status_code == 413

    async def chunks():  # a body that does not say how long it is
        for _ in range(20):
            yield b"x" * 100

    assert (await post(address, body=chunks())).status_code == 413


async def test_models_are_listed_for_a_good_key(tuner_of):
    base_url, api_key = tuner_of().as_oai_baseurl_apikey()
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        assert [model.id async for model in client.models.list()] == ["ajet"]
        assert (await client.models.retrieve("ajet")).owned_by == "ajet"
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="forged").models.list()


async def test_unknown_addresses_say_what_there_is(tuner_of):
    answer = await post(tuner_of().as_oai_baseurl_apikey(), path="/embeddings")
    assert answer.status_code == 404
    assert "/v1/chat/completions" in answer.json()["error"]["message"]


async def test_a_failing_endpoint_is_a_bad_gateway_and_is_not_asked_again(tuner_of):
    calls = []

    def fail(prompt, request_id):
        calls.append(request_id)
        raise RuntimeError("no weights")

    base_url, api_key = tuner_of(fail).as_oai_baseurl_apikey()
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=3) as client:
        with pytest.raises(openai.InternalServerError, match="no weights"):
            await client.chat.completions.create(model="m", messages=HI)
    assert calls == ["e/0000"]


async def test_a_port_that_is_taken_is_one_line(tuner_of):
    port = httpx.URL(tuner_of().as_oai_baseurl_apikey().base_url).port
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}.*to auto$"):
        Gateway(port).open(Grant(recorder()))


async def test_300_interleaved_episodes_get_only_their_own_tokens(tuner_of):
    async def episode(name, client):
        tuner = tuner_of(lambda prompt, request_id: f"I am {request_id}", episode_id=name)
        base_url, api_key = tuner.as_oai_baseurl_apikey()
        messages = [{"role": "user", "content": f"Are you {name}?"}]
        for turn in range(2):
            async with few_at_once:
                answer = await client.post(
                    f"{base_url}/chat/completions",
                    json={"model": "m", "messages": messages},
                    headers={"authorization": f"Bearer {api_key}"},
                )
            message = answer.json()["choices"][0]["message"]
            assert message["content"] == f"I am {name}/{turn:04d}"
            messages += [message, {"role": "user", "content": "And now?"}]
        return tuner._recorder

    names = [f"episode-{number:04d}" for number in range(300)]
    random.Random(0).shuffle(names)
    few_at_once = asyncio.Semaphore(64)
    async with httpx.AsyncClient(timeout=60) as client:
        recorders = await asyncio.gather(*(episode(name, client) for name in names))
    for name, each in zip(names, recorders, strict=True):
        _, second = each.turns
        told = TOKENIZER.decode(second.completion.prompt_ids + second.completion.token_ids)
        assert told.count("episode-") == told.count(name) == 3
        assert second.notes.continues


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", {"type": "image_url", "image_url": {"url": "ADDRESS"}}),
        ("/chat/completions", {"type": "file", "file": {"file_url": "ADDRESS"}}),
        ("/responses", {"type": "input_image", "image_url": "ADDRESS"}),
        ("/responses", {"type": "input_file", "file_url": "ADDRESS"}),
        ("/messages", {"type": "image", "source": {"type": "url", "url": "ADDRESS"}}),
        ("/messages", {"type": "document", "source": {"type": "url", "url": "ADDRESS"}}),
    ],
)
@pytest.mark.parametrize("scheme", ["http", "file"])
async def test_no_address_in_a_message_is_ever_opened(tuner_of, tmp_path, path, body, scheme):
    asked = []
    canary = await asyncio.start_server(lambda *_: asked.append(1), "127.0.0.1", 0)
    port = canary.sockets[0].getsockname()[1]
    (tmp_path / "secret").write_text("the secret")
    address = f"http://127.0.0.1:{port}/" if scheme == "http" else f"file://{tmp_path}/secret"
    part = json.loads(json.dumps(body).replace("ADDRESS", address))
    messages = [{"role": "user", "content": [part]}]
    field = "input" if path == "/responses" else "messages"
    content = json.dumps({"model": "m", "max_tokens": 8, field: messages})
    answer = await post(tuner_of().as_oai_baseurl_apikey(), content, path=path)
    canary.close()
    assert answer.status_code == 400
    assert asked == [] and "the secret" not in answer.text


async def test_requests_without_a_key_hold_up_no_episode(tuner_of):
    address = tuner_of("red").as_oai_baseurl_apikey()
    flood = [asyncio.create_task(post(address, key="none")) for _ in range(200)]
    assert (await post(address)).json()["choices"][0]["message"]["content"] == "red"
    assert {(await answer).status_code for answer in flood} == {401}
