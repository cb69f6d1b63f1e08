"""The protocol's words, and what becomes of a service that stumbles."""

import re

import pytest

from ajet.core.errors import ConfigError, EnvironmentFault
from ajet.environments.env_service.client import EnvServiceClient
from tests.env_server import StubService

SEEN = {
    "state": [{"role": "user", "content": "a door"}],
    "reward": 0.25,
    "is_terminated": False,
    "info": {"k": 1},
}


def fails_first(count, failure, reply=(200, {"success": True, "data": SEEN})):
    """`failure` for the first `count` calls, then the reply."""
    told = [failure] * count
    return lambda verb, body: told.pop() if told else reply


async def call(stub, verb="create"):
    async with EnvServiceClient(stub.url, "house", backoff_s=0.001) as client:
        if verb == "step":
            return await client.step("i0", {"role": "assistant", "content": "open"})
        return await client.create("t0", "i0", {"seed": 3})


async def test_every_call_has_the_protocols_five_fields():
    with StubService(lambda verb, body: (200, {"success": True, "data": SEEN})) as stub:
        seen = await call(stub)
        await call(stub, "step")
    create, step = stub.calls
    assert create == (
        "create",
        {
            "env_type": "house",
            "task_id": "t0",
            "instance_id": "i0",
            "messages": {},
            "params": {"seed": 3},
        },
    )
    assert step[0] == "step" and step[1]["messages"] == {"role": "assistant", "content": "open"}
    assert (seen.text, seen.reward, seen.is_terminated, seen.info) == (
        "a door",
        0.25,
        False,
        {"k": 1},
    )


@pytest.mark.parametrize("profile", [{"data": ["a", 2]}, {"task_ids": ["a", 2]}])
async def test_task_ids_are_read_under_both_names(profile):
    with StubService(lambda verb, body: (200, profile)) as stub:
        async with EnvServiceClient(stub.url, "house") as client:
            assert await client.task_ids("dev") == ["a", "2"]
    assert stub.calls[0][1]["params"] == {"split": "dev"}


@pytest.mark.parametrize("failure", [(500, {}), (503, {}), (429, {}), None])
async def test_a_call_is_sent_again_three_times(failure):
    with StubService(fails_first(3, failure)) as stub:
        assert (await call(stub)).text == "a door"
    assert len(stub.calls) == 4


async def test_the_fourth_failure_is_one_line_that_says_where_and_why():
    said = {"detail": "out of\nmemory"}
    with (
        StubService(lambda verb, body: (500, said)) as stub,
        pytest.raises(EnvironmentFault) as error,
    ):
        await call(stub)
    assert str(error.value) == f"{stub.url}/create: HTTP 500: out of memory"
    assert len(stub.calls) == 4


@pytest.mark.parametrize("failure", [(500, {}), (502, "bad gateway"), None])
async def test_an_action_that_may_have_been_done_is_not_sent_again(failure):
    with StubService(fails_first(1, failure)) as stub, pytest.raises(EnvironmentFault):
        await call(stub, "step")
    assert stub.verbs == ["step"]


async def test_an_action_that_was_turned_away_is_sent_again():
    with StubService(fails_first(2, (503, {}))) as stub:
        await call(stub, "step")
    assert stub.verbs == ["step"] * 3


async def test_a_refusal_is_not_sent_again():
    said = {"detail": "no task t0"}
    with (
        StubService(lambda verb, body: (404, said)) as stub,
        pytest.raises(EnvironmentFault, match="HTTP 404: no task t0"),
    ):
        await call(stub)
    assert len(stub.calls) == 1


async def test_no_service_is_one_line():
    with StubService(lambda verb, body: None) as stub:
        pass
    with pytest.raises(EnvironmentFault, match="cannot be reached or broke off") as error:
        await call(stub)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("<html>", "the answer is not a JSON object"),
        ([], "the answer is not a JSON object"),
        ({"success": False, "data": "bad task"}, "/create: bad task"),
        ({"success": True}, "data is not an object with state"),
        ({"data": {"state": []}}, "data.state is an empty list"),
        ({"data": {"state": 3}}, "neither a chat message nor a list"),
        ({"data": SEEN | {"reward": "much"}}, "data.reward is not a finite number: 'much'"),
        ({"data": SEEN | {"reward": float("nan")}}, "data.reward is not a finite number: nan"),
        ({"data": SEEN | {"reward": 10**400}}, "data.reward is too large a number"),
        ({"data": SEEN | {"info": "ok"}}, "data.info is not an object: 'ok'"),
        ({"data": SEEN | {"info": []}}, "data.info is not an object: []"),
        ({"data": SEEN | {"is_terminated": "false"}}, "is neither true nor false: 'false'"),
        (
            {"data": SEEN | {"state": {"role": "user", "content": 5}}},
            "is not a chat message: {'role'",
        ),
        ({"data": SEEN | {"state": [{"content": "x"}]}}, "state is not a chat message: {'content'"),
        ({"data": SEEN | {"state": [{}]}}, "data.state is not a chat message: {}"),
        ({"data": SEEN, "success": "false"}, "/create: {"),
        ("[" * 100_000, "the answer is not a JSON object"),
    ],
)
async def test_an_odd_answer_is_a_fault_of_the_environment(reply, message):
    with (
        StubService(lambda verb, body: (200, reply)) as stub,
        pytest.raises(EnvironmentFault, match=re.escape(message)),
    ):
        await call(stub)


@pytest.mark.parametrize("state", ["go", {"role": "user", "content": "go"}])
async def test_a_state_may_be_text_or_one_message(state):
    with StubService(lambda verb, body: (200, {"data": {"state": state}})) as stub:
        seen = await call(stub)
    assert (seen.state, seen.reward) == ([{"role": "user", "content": "go"}], 0.0)


async def test_several_messages_are_one_text_and_none_is_dropped():
    state = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    with StubService(lambda verb, body: (200, {"data": {"state": state}})) as stub:
        assert (await call(stub)).text == "one\ntwo"


def test_an_address_needs_its_scheme():
    with pytest.raises(ConfigError, match="begins with http://"):
        EnvServiceClient("127.0.0.1:8080", "house")
