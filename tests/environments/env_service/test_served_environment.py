"""An environment behind the service is the same environment, step for step."""

import random

import numpy as np
import pytest

from ajet.core.environment.environment import Environment
from ajet.core.environment.registry import environment_maker
from ajet.core.errors import ConfigError, EnvironmentFault
from ajet.environments.countdown import Countdown
from ajet.environments.env_service.__main__ import checked_maker
from ajet.environments.env_service.server import Instance, make_app
from ajet.environments.guess_number import GuessNumber
from tests.env_server import StubService, serve


class Walk(Environment):
    """Ends at 3 by itself and at 5 steps by a limit; knows nothing of success."""

    closed = 0

    def reset(self, seed=None, options=None):
        self.at, self.steps, self.split = 0, 0, (options or {}).get("split")
        return f"at 0 in {self.split}", {"state_key": "0"}

    def step(self, action):
        self.at += action == "on"
        self.steps += 1
        info = {"state_key": str(self.at), "metrics": {"moved": action == "on"}, "object": "x"}
        return f"at {self.at}", 0.25, self.at == 3, self.steps == 5, info

    def close(self):
        Walk.closed += 1


class OfNumpy(Environment):
    """Speaks numpy's types, and fails at some actions."""

    def reset(self, seed=None, options=None):
        return "begin", {"state_key": "k", "mask": np.ones(3)}

    def step(self, action):
        if action == "raise":
            raise LookupError("lost")
        reward = float("nan") if action == "nan" else np.float32(0.5)
        info = {"metrics": {"success": np.bool_(True)}, "mask": np.ones(3)}
        return "on", reward, np.bool_(False), np.bool_(True), info


KINDS = {
    "guess_number": GuessNumber,
    "countdown": Countdown,
    "walk": Walk,
    "of_numpy": OfNumpy,
}


@pytest.fixture(scope="module")
def app():
    return make_app(KINDS)


@pytest.fixture(scope="module")
def url(app):
    with serve(app) as url:
        yield url


def served(url, env_type, **more):
    config = {"env_url": url, "env_type": env_type} | more
    return environment_maker("env_service", config, [], "custom_envs.x.env_type")()


@pytest.mark.parametrize("env_type", ["guess_number", "countdown"])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_served_is_local_step_for_step(url, app, env_type, split):
    local, far, rng = KINDS[env_type](), served(url, env_type), random.Random(0)
    for seed in range(4):
        shown, info = local.reset(seed=seed, options={"split": split})
        rules = local.instruction
        assert far.reset(seed=seed, options={"split": split}) == (f"{rules}\n{shown}", info)
        terminated = False
        while not terminated:
            action = rng.choice([local.sample_action(rng), local.oracle_action(), "nonsense"])
            expected = local.step(action)
            assert far.step(action) == expected
            assert far.render() == expected[0]
            terminated = expected[2]
        assert len(app.state.service.instances) == 1
    far.close()
    assert not app.state.service.instances


def test_truncation_state_keys_and_metrics_come_back(url):
    far = served(url, "walk")
    assert far.reset(seed=1) == ("at 0 in train", {"state_key": "0"})
    shown = [far.step("stay") for _ in range(5)]
    assert [step[2:4] for step in shown] == [(False, False)] * 4 + [(False, True)]
    assert shown[0] == (
        "at 0",
        0.25,
        False,
        False,
        {"state_key": "0", "metrics": {"moved": False}},
    )
    assert far.step("on")[:4] == ("The episode is over.", 0.0, True, False)
    before = Walk.closed
    far.close()
    far.close()
    assert Walk.closed == before + 1


def test_numpys_types_are_served_and_what_json_cannot_say_stays_there(url):
    far = served(url, "of_numpy")
    assert far.reset(seed=1) == ("begin", {"state_key": "k"})
    assert far.step("on") == ("on", 0.5, False, True, {"metrics": {"success": True}})


@pytest.mark.parametrize(
    ("action", "told"),
    [
        ("nan", r"OfNumpy.step\(\): the reward is nan, not a finite number"),
        ("raise", r"OfNumpy.step\(\) raised LookupError: lost"),
    ],
)
def test_an_error_of_the_service_reaches_its_client(url, action, told):
    far = served(url, "of_numpy")
    far.reset(seed=1)
    with pytest.raises(EnvironmentFault, match=told):
        far.step(action)
    far.close()


def test_the_score_says_success_exactly_where_the_environment_does():
    walk = Instance(Walk, "train-0")
    walk.reset({"seed": 0})
    for _ in range(3):
        walk.step("on")
    assert walk.score(is_sparse=False) == 0.75  # it says nothing of success: what it earned

    game = Instance(lambda: Countdown(max_tries=2, format_reward=5.0), "train-0")
    game.reset({"seed": 0})
    numbers = game.environment.numbers
    game.step(f"{numbers[0]}-{numbers[1]}-0")
    assert game.score(is_sparse=False) == 0.0
    wrong = next(
        f"{numbers[0]}{each}{numbers[1]}"
        for each in "+-"
        if eval(f"{numbers[0]}{each}{numbers[1]}") != game.environment.target
    )
    game.step(wrong)
    assert (game.score(is_sparse=False), game.score(is_sparse=True)) == (0.99, 0.0)
    won = Instance(Countdown, "train-0")
    won.reset({})
    won.step(won.environment.oracle_action())
    assert won.score(is_sparse=True) == won.score(is_sparse=False) == 1.0


def test_without_a_seed_the_tasks_name_decides():
    def first(task_id, **params):
        return Instance(Countdown, task_id).reset(params)["state"][-1]["content"]

    assert first("train-3") == first("train-3")
    assert len({first(f"train-{index}") for index in range(20)}) > 10
    assert first("train-3", seed=5) == Countdown().reset(5, {"split": "train"})[0]


def test_a_service_that_is_down_or_empty_is_a_fault_of_one_line(url):
    with StubService(lambda verb, body: None) as stub:
        pass
    far = served(stub.url, "walk")
    with pytest.raises(EnvironmentFault, match="get_env_profile: cannot be reached"):
        far.reset(seed=0)
    far.close()
    far = served(url, "walk", training_split="moon")
    with pytest.raises(EnvironmentFault, match="the service has no task in 'moon'"):
        far.reset(seed=0)
    far.close()
    far = served(url, "chess")
    with pytest.raises(EnvironmentFault, match="no env_type 'chess'"):
        far.reset(seed=0)
    far.close()
    with pytest.raises(ConfigError, match="an address begins with http://"):
        served("localhost", "walk")


@pytest.mark.parametrize(
    ("env_type", "config", "message"),
    [
        ("guess_number", "{", "--config: not JSON"),
        ("guess_number", "[1]", "--config: write a JSON object"),
        ("guess_number", '{"foo": 1}', "guess_number has no setting 'foo'; there are low, high"),
        ("guess_number", '{"low": 9, "high": 1}', "--config: guess_number: low 9 is above high 1"),
        ("chess", "{}", "--env: no environment 'chess'"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(env_type, config, message):
    with pytest.raises(ConfigError, match=message):
        checked_maker(env_type, config, [])


def test_any_environment_of_the_registry_can_be_served():
    maker = checked_maker("CartPole-v1", '{"max_episode_steps": 3}', [])
    with serve(make_app({"CartPole-v1": maker}, {"train": 2})) as url:
        far = served(url, "CartPole-v1")
        local = maker()
        shown, _ = local.reset(seed=7)
        assert far.reset(seed=7)[0] == f"{local.instruction}\n{shown}"
        assert [far.step("1") for _ in range(3)] == [local.step("1") for _ in range(3)]
        far.close()
