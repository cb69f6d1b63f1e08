"""ajet's environments served as OpenEnv: the same steps, for our client and for OpenEnv's own."""

import json
import random
from contextlib import suppress

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from ajet.core.environment.environment import Environment
from ajet.core.environment.registry import environment_maker
from ajet.environments.env_service.openenv_app import make_openenv_app
from ajet.environments.frozen_lake import FrozenLake
from tests.env_server import serve


class Broken(Environment):
    """Fails at the second step, and in its constructor if it is told so."""

    def __init__(self, fails=False):
        if fails:
            raise ValueError("no dice")
        self.num_steps = 0

    def reset(self, seed=None, options=None):
        return f"{options['split']} {seed}", {"env_instruction": "roll"}

    def step(self, action):
        self.num_steps += 1
        if self.num_steps > 1:
            raise ValueError("lost\nthem")
        return "rolled", 0.5, False, False, {}


def maker_of(env_type="frozen_lake", **config):
    return environment_maker(env_type, config, [], "--env")


def broken(**config):
    return maker_of(f"{__name__}->Broken", **config)


def test_frozen_lake_over_openenv_is_frozen_lake_step_for_step():
    rng = random.Random(0)
    with serve(make_openenv_app(maker_of(size=4))) as url:
        for seed in range(4):
            direct, served = FrozenLake(size=4), maker_of(f"openenv:{url}")()
            assert served.reset(seed=seed)[0] == direct.reset(seed, {"split": "train"})[0]
            is_over = False
            while not is_over:
                action = rng.choice(["Left", "Right", "Up", "Down"])
                observation, reward, terminated, truncated, _ = direct.step(action)
                is_over = terminated or truncated
                assert served.step(action)[:3] == (observation, reward, is_over)
            served.close()


def test_openenvs_own_client_plays_it():
    client_kind = pytest.importorskip("openenv", reason="pip install openenv").GenericEnvClient
    with (
        serve(make_openenv_app(maker_of(size=4))) as url,
        client_kind(base_url=url).sync() as client,
    ):
        direct = FrozenLake(size=4)
        first = client.reset(seed=5, split="validation")
        assert first.observation["text"] == direct.reset(5, {"split": "validation"})[0]
        assert first.observation["metadata"]["instruction"] == direct.instruction
        action = direct.oracle_action()
        expected = direct.step(action)
        step = client.step({"action": action})
        assert (step.observation["text"], step.reward, step.done) == expected[:3]
        assert client.state()["step_count"] == 1


def talk(url, *messages):
    with connect(f"{url.replace('http', 'ws')}/ws") as socket:
        for message in messages:
            with suppress(ConnectionClosed):  # one without room says so, and closes
                socket.send(message if isinstance(message, str) else json.dumps(message))
            yield json.loads(socket.recv())


def test_whatever_a_client_sends_is_answered_with_an_error_and_the_session_goes_on():
    sent = ["{", "[" * 5000, "3", {"type": "look"}, {"type": "reset", "data": {"seed": -1}},
            {"type": "reset", "data": 3}, {"type": "step", "data": {"action": "x"}},
            {"type": "reset", "data": {"seed": 1}}, {"type": "step", "data": {"act": "x"}},
            {"type": "step", "data": {"action": "x"}}, {"type": "step", "data": {"action": "x"}},
            {"type": "state"}]  # fmt: skip
    with serve(make_openenv_app(broken())) as url:
        answers = list(talk(url, *sent))
    codes = [each["data"].get("code") for each in answers]
    assert codes == ["INVALID_JSON", "INVALID_JSON", "UNKNOWN_TYPE", "UNKNOWN_TYPE",
                     "VALIDATION_ERROR", "VALIDATION_ERROR", "EXECUTION_ERROR",
                     None, "VALIDATION_ERROR", None, "EXECUTION_ERROR", None]  # fmt: skip
    assert answers[7]["data"]["observation"]["text"] == "train 1"
    assert answers[7]["data"]["metadata"] == {"instruction": "roll"}
    assert answers[9]["data"]["reward"] == 0.5
    assert "ValueError: lost" in answers[10]["data"]["message"]
    assert answers[11]["data"]["step_count"] == 1


def test_sessions_beyond_the_limit_and_environments_that_cannot_be_made_are_told():
    with serve(make_openenv_app(broken(), max_sessions=1)) as url:
        first = talk(url, {"type": "state"})
        next(first)
        assert next(talk(url, {"type": "state"}))["data"]["code"] == "CAPACITY_REACHED"
    with serve(make_openenv_app(broken(fails=True))) as url:
        assert next(talk(url, {"type": "state"}))["data"]["code"] == "FACTORY_ERROR"
