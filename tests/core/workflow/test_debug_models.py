"""Who is trained, and who is served by another model: `trainable_targets` and `debug_model`."""

import openai
import pytest

from ajet.core.workflow.tuner import ModelTuner
from tests.core.workflow.gateway.episode import HI, recorder

OTHER = ("http://other.invalid/v1", "sk-other")


@pytest.fixture
def tuner():
    return ModelTuner(recorder(targets=["solver"]))


async def test_an_agent_that_is_not_trained_gets_the_other_model(tuner):
    client = openai.AsyncOpenAI(base_url=OTHER[0], api_key=OTHER[1])
    assert tuner.as_raw_openai_sdk_client("critic", debug_model=client) is client
    assert tuple(tuner.as_oai_baseurl_apikey("critic", debug_model=OTHER)) == OTHER
    model = object()
    assert tuner.as_agentscope_model("critic", debug_model=model) is model
    assert tuner.as_langchain_model("critic", debug_model=model) is model


async def test_an_agent_that_is_trained_never_does(tuner):
    client = openai.AsyncOpenAI(base_url=OTHER[0], api_key=OTHER[1])
    mine = tuner.as_raw_openai_sdk_client("solver", debug_model=client)
    assert mine is not client
    await mine.chat.completions.create(model="m", messages=HI)
    by_tag = tuner.as_oai_baseurl_apikey("any", target_tag="solver", debug_model=OTHER)
    assert by_tag.base_url != OTHER[0]
    [turn] = tuner._recorder.turns
    assert (turn.agent_name, turn.trainable) == ("solver", True)
    tuner.close()


async def test_without_another_model_the_agent_is_served_and_not_trained(tuner):
    client = tuner.as_raw_openai_sdk_client("critic")
    await client.chat.completions.create(model="m", messages=HI)
    [turn] = tuner._recorder.turns
    assert (turn.agent_name, turn.trainable) == ("critic", False)


async def test_another_model_may_be_named_as_at_openai(tuner, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", OTHER[1])
    monkeypatch.setenv("OPENAI_BASE_URL", OTHER[0])
    client = tuner.as_raw_openai_sdk_client("critic", debug_model="gpt-4o")
    assert str(client.base_url).startswith(OTHER[0])
    sent = []

    async def post(path, *, body, **_):
        sent.append((path, body["model"]))

    for each in (client, client.with_options(timeout=5)):
        monkeypatch.setattr(each.chat.completions, "_post", post)
        await each.chat.completions.create(HI)
        await each.chat.completions.create(messages=HI, model="ajet")
    assert sent == [("/chat/completions", "gpt-4o")] * 4
    mine = tuner.as_raw_openai_sdk_client("solver", debug_model="gpt-4o")
    await mine.chat.completions.create(HI)
    [turn] = tuner._recorder.turns
    assert turn.agent_name == "solver"
