"""nemo_gym_agent: a row's tools and reward come from a resources server, whatever that answers."""

import json
from itertools import count

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from ajet.core.config import load_config
from ajet.core.errors import ConfigError, EnvironmentFault
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.environments.nemo_gym.session import NemoGymSection, first_messages
from tests.agents.agent_runs import call, run, texts
from tests.env_server import StubService, serve

INCREMENT = {
    "type": "function",
    "name": "increment",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"count": {"type": "integer"}}},
    "strict": True,
}
ROW = {
    "responses_create_params": {
        "instructions": "Count.",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "add 1 and 2"}]}],
        "tools": [INCREMENT],
    },
    "initial_count": 3,
    "expected_count": 6,
}


class Counting:
    """A resources server with a counter for each session, which a cookie names."""

    def __init__(self):
        self.numbers, self.counters, self.verified = count(), {}, []
        routes = [
            Route(f"/{name}", getattr(self, name), methods=["POST"])
            for name in ("seed_session", "increment", "verify")
        ]
        self.app = Starlette(routes=routes)

    async def seed_session(self, request):
        session = str(next(self.numbers))
        self.counters[session] = (await request.json())["initial_count"]
        answer = JSONResponse({})
        answer.set_cookie("session", session)
        return answer

    async def increment(self, request):
        body = await request.json()
        if "count" not in body:
            return PlainTextResponse("count is missing", status_code=422)
        self.counters[request.cookies["session"]] += body["count"]
        return JSONResponse({"success": True})

    async def verify(self, request):
        body = await request.json()
        self.verified.append(body)
        is_right = self.counters[request.cookies["session"]] == body["expected_count"]
        numbers = {"num_calls": 2, "expected_count": 6, "mask_sample": False}
        return JSONResponse(body | numbers | {"reward": float(is_right)})


class Stepping:
    """A resources server that steps: each reply "more" earns 0.25 and another question, whatever
    calls it makes are answered, and "done" ends it with 1."""

    def __init__(self, can_close=False):
        self.num_closed, self.stepped, self.info = 0, [], {"supports_explicit_close": can_close}
        names = ("reset", "step", "close")
        self.app = Starlette(
            routes=[Route(f"/{name}", getattr(self, name), methods=["POST"]) for name in names]
        )

    async def reset(self, request):
        answer = JSONResponse({"observation": "begin", "info": self.info})
        answer.set_cookie("session", "s")
        return answer

    async def step(self, request):
        body = await request.json()
        assert request.cookies == {"session": "s"} and body["expected_count"] == 6
        output = body["response"]["output"]
        self.stepped.append([item["type"] for item in output])
        if output[0]["type"] == "message" and output[0]["content"][0]["text"] == "done":
            return JSONResponse({"reward": 1, "terminated": True})
        calls = [item["call_id"] for item in output if item["type"] == "function_call"]
        info = {"tool_outputs": [{"call_id": each, "output": "3"} for each in calls]}
        return JSONResponse({"observation": "and now?", "reward": 0.25, "info": info})

    async def close(self, request):
        self.num_closed += 1
        return PlainTextResponse("gone", status_code=500)


def config_in(folder, url, agent="simple", **multi_turn):
    ajet = {
        "model": {"path": "m"},
        "rollout": {
            "user_workflow": "nemo_gym_agent",
            "multi_turn": multi_turn,
        },
    }
    section = {"url": url, "timeout_s": 0.5, "agent": agent}
    (folder / "run.yaml").write_text(json.dumps({"ajet": ajet, "nemo_gym": section}))
    return load_config(folder / "run.yaml")


async def play(folder, url, *replies, row=ROW, num=1, server="simple", **multi_turn):
    config = config_in(folder, url, server, **multi_turn)
    return await run(
        config, *replies, row=row, agent="nemo_gym_agent", num=num, max_failure_rate=1.0
    )


async def test_tools_run_in_the_servers_session_and_verify_gives_the_reward(tmp_path):
    server = Counting()
    with serve(server.app) as url:
        first, second = await play(
            tmp_path, url, call("increment", count=1) + call("increment", count=2), "done", num=2
        )
    assert [first.reward, second.reward] == [1.0, 1.0]
    assert first.is_success
    assert texts(first) == ['{"success":true}', '{"success":true}']
    assert sorted(server.counters.values()) == [6, 6]
    sent = server.verified[0]
    assert {name: sent[name] for name in ROW} == ROW
    kinds = [item["type"] for item in sent["response"]["output"]]
    assert kinds == ["function_call"] * 2 + ["function_call_output"] * 2 + ["message"]
    ids = [item.get("call_id") for item in sent["response"]["output"]]
    assert ids[:2] == ids[2:4]
    assert sent["response"]["output"][-1]["content"][0]["text"] == "done"
    # neither what the row says nor mask_sample is a metric
    assert first.output.log_metrics == {"nemo_gym/num_calls": 2.0, "assistant_turns": 2.0}


async def test_an_invalid_tool_call_is_answered_with_an_error(tmp_path):
    with serve(Counting().app) as url:
        wrong = [call("increment"), call("verify"), call("../increment"), call("nothing")]
        episode = await play(tmp_path, url, *wrong, "done")
    assert texts(episode)[0] == "Error: count is missing"
    assert texts(episode)[1] == "Error: there is no tool verify"
    assert all(text.startswith("Error: ") for text in texts(episode))
    assert episode.reward == 0.0


async def test_a_limit_of_replies_ends_the_conversation_and_it_is_verified(tmp_path):
    server = Counting()
    with serve(server.app) as url:
        episode = await play(tmp_path, url, call("increment", count=3), max_assistant_turns=1)
    assert episode.output.metadata["ended_by"] == "max_assistant_turns"
    assert [item["type"] for item in server.verified[0]["response"]["output"]] == ["function_call"]


async def test_a_server_that_steps_is_shown_each_reply_and_its_rewards_are_summed(tmp_path):
    server = Stepping()
    with serve(server.app) as url:
        replies = ("more", call("increment", count=1), "done")
        episode = await play(tmp_path, url, *replies, server="gymnasium")
    assert (episode.status, episode.error) == (EpisodeStatus.OK, None)
    assert (episode.reward, episode.is_success) == (1.5, True)  # 0.25 + 0.25 + 1
    assert server.stepped == [["message"], ["function_call"], ["message"]]
    assert episode.output.metadata["ended_by"] == "terminated"
    roles = [message["role"] for message in episode.turns[-1].messages]
    assert roles == [
        "system", "user", "user", "assistant", "user", "assistant", "tool", "user",
    ]  # fmt: skip
    shown = [m["content"] for m in episode.turns[-1].messages if m["role"] in ("user", "tool")]
    assert shown == ["add 1 and 2", "begin", "and now?", "3", "and now?"]
    assert server.num_closed == 0


async def test_a_limit_of_replies_ends_an_episode_of_steps_with_what_it_has_earned(tmp_path):
    server = Stepping(can_close=True)
    with serve(server.app) as url:
        episode = await play(
            tmp_path, url, "more", "more", server="gymnasium", max_assistant_turns=2
        )
    assert (episode.reward, episode.is_success) == (0.5, False)
    assert episode.output.metadata["ended_by"] == "max_assistant_turns"
    assert server.num_closed == 1  # though that failed, the episode has its reward


ANSWERS = {
    "no JSON": (200, "{"),
    "no object": (200, "[1]"),
    "no reward": (200, {}),
    "text": (200, {"reward": "1"}),
    "nan": (200, '{"reward": NaN}'),
    "too large": (200, '{"reward": 1' + "0" * 400 + "}"),
    "too deep": (200, "[" * 100_000),
    "masked": (200, {"reward": 1, "mask_sample": True, "failure_reason": "lost\nit"}),
    "refused": (500, "broken\nhere"),
    "huge": (200, "x" * (17 << 20)),
    "hung up": None,
}


CASES = [("verify", name) for name in ANSWERS]
CASES += [("seed_session", name) for name in ("refused", "huge", "hung up")]


@pytest.mark.parametrize(("at", "name"), CASES)
async def test_whatever_a_server_answers_is_an_env_error_of_one_line(tmp_path, at, name):
    answer = ANSWERS[name]
    good = {"seed_session": (200, {}), "verify": (200, {"reward": 1.0})}
    with StubService(lambda verb, _: answer if verb == at else good[verb]) as stub:
        episode = await play(tmp_path, stub.url, "done")
    assert episode.status is EpisodeStatus.ENV_ERROR
    assert "\n" not in episode.error
    assert f"nemo_gym: {at}: " in episode.error


STEPS = [
    *((at, name) for at in ("reset", "step") for name in ("no JSON", "no object", "too deep")),
    *(("step", name) for name in ("text", "nan", "refused", "huge", "hung up")),
    ("reset", "refused"),
]


@pytest.mark.parametrize(("at", "name"), STEPS)
async def test_whatever_a_server_that_steps_answers_is_an_env_error_of_one_line(tmp_path, at, name):
    answer = ANSWERS[name]
    good = {"reset": (200, {"observation": None}), "step": (200, {"terminated": True})}
    with StubService(lambda verb, _: answer if verb == at else good[verb]) as stub:
        episode = await play(tmp_path, stub.url, "done", server="gymnasium")
    assert episode.status is EpisodeStatus.ENV_ERROR
    assert "\n" not in episode.error
    assert f"nemo_gym: {at}: " in episode.error


@pytest.mark.parametrize(
    "given",
    [
        None,
        3,
        [3],
        [{"type": "reasoning"}],
        [{"role": "user", "content": [{"type": "input_image"}]}],
        [{"role": "user", "content": None}],
    ],
)
def test_input_that_is_not_text_is_refused(given):
    with pytest.raises(EnvironmentFault, match="nemo_gym: "):
        first_messages({"input": given})


def test_input_may_be_text_or_have_earlier_calls():
    assert first_messages({"input": "hi"}) == [{"role": "user", "content": "hi"}]
    items = [
        {"role": "developer", "content": "be brief"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
    ]
    messages = first_messages({"input": items})
    assert [message["role"] for message in messages] == ["system", "assistant", "tool"]
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"] == "c"


@pytest.mark.parametrize(
    ("url", "told"),
    [("", "nemo_gym.url: '' is not the address"), ("file:///x", "is not the address")],
)
def test_a_missing_address_is_an_error_before_the_run(tmp_path, url, told):
    with pytest.raises(ConfigError, match=told):
        NemoGymSection.from_config(config_in(tmp_path, url))
