"""Environments of Gymnasium, by id: the same steps, with observations and actions as text."""

import random

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ajet.core.environment.registry import environment_maker
from ajet.core.errors import ConfigError
from ajet.environments.gymnasium import GymnasiumEnvironment, as_text

TAXI = ["south", "north", "east", "west", "pickup", "dropoff"]


class Parrot(gymnasium.Env):
    """Text in, text out; says what it knows in `info`."""

    observation_space = spaces.Text(40)
    action_space = spaces.Text(8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return f"say {self.np_random.integers(1000)}", {"state_key": "start", "secret": "x"}

    def step(self, action):
        info = {"metrics": {"words": 1}, "state_key": action, "is_success": True, "array": [1]}
        return f"you said {action}", 0.5, False, action == "bye", info


class Missions(spaces.Space):
    """A package's own space of texts."""

    def __init__(self):
        super().__init__(dtype=str)

    def contains(self, x):
        return isinstance(x, str)


class Errand(Parrot):
    """Shows a mission beside what is seen."""

    observation_space = spaces.Dict({"mission": Missions(), "seen": spaces.Discrete(3)})

    def reset(self, *, seed=None, options=None):
        return {"mission": "find the ball", "seen": 2}, {}


@pytest.fixture(scope="module", autouse=True)
def registered():
    kinds = {"Parrot": Parrot, "Errand": Errand}
    for name, kind in kinds.items():
        gymnasium.register(f"ajet-tests/{name}-v0", entry_point=kind)
    yield
    for name in kinds:
        del gymnasium.registry[f"ajet-tests/{name}-v0"]


def made(env_id, **config):
    return environment_maker(env_id, config, [], "custom_envs.x.env_type")()


def test_taxi_is_gymnasiums_step_for_step():
    ours, theirs = made("Taxi-v4", actions=TAXI), gymnasium.make("Taxi-v4")
    rng = random.Random(1)
    for seed in range(5):
        assert ours.reset(seed=seed)[0] == str(theirs.reset(seed=seed)[0])
        for _ in range(40):
            number = rng.randrange(6)
            action = rng.choice([TAXI[number], TAXI[number].upper(), str(number)])
            observation, reward, *ended, _ = ours.step(action)
            expected = theirs.step(number)
            assert (observation, reward, *ended) == (str(expected[0]), *expected[1:4])


def test_a_packages_own_space_of_texts_is_shown_as_it_is():
    env = made("ajet-tests/Errand-v0")
    assert env.reset(seed=1)[0] == "mission: find the ball\nseen: 2"


def test_a_limit_of_steps_truncates():
    env = made("gymnasium:Taxi-v4", max_episode_steps=2)
    env.reset(seed=0)
    assert env.step("0")[2:4] == (False, False)
    assert env.step("0")[2:4] == (False, True)


def test_numbers_are_actions_and_observations():
    ours, theirs = made("Pendulum-v1"), gymnasium.make("Pendulum-v1")
    ours.reset(seed=3)
    theirs.reset(seed=3)
    observation, reward, *_ = ours.step("-1.5")
    expected, expected_reward, *_ = theirs.step(np.array([-1.5], dtype=np.float32))
    assert reward == expected_reward
    assert np.allclose([float(x) for x in observation.split()], expected, rtol=1e-3)


@pytest.mark.parametrize(
    ("env_id", "actions"),
    [
        ("CartPole-v1", ["", "2", "-1", "left", "1 0", "1.0", "99999999999", "٣"]),
        ("Pendulum-v1", ["", "3", "nan", "1 1", "1e999", "a"]),
        ("ajet-tests/Parrot-v0", ["", "wordthatislong", "two words"]),
    ],
)
def test_text_that_is_no_action_leaves_the_state(env_id, actions):
    env = made(env_id)
    first, _ = env.reset(seed=0)
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        assert observation == f"{env.instruction}\n{first}"
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert info == {"metrics": {"action_is_valid": False}}


def test_a_text_environments_own_metrics_pass_and_nothing_else():
    env = made("ajet-tests/Parrot-v0")
    shown, info = env.reset(seed=4)
    assert shown.startswith("say ") and info == {"state_key": "start"}
    observation, reward, terminated, truncated, info = env.step(" bye ")
    assert (observation, reward, terminated, truncated) == ("you said bye", 0.5, False, True)
    metrics = {"words": 1, "action_is_valid": True, "success": True}
    assert info == {"metrics": metrics, "state_key": "bye"}


def test_composed_observations_are_lines():
    space = spaces.Dict({"at": spaces.Box(-9, 9, (2, 2)), "flag": spaces.Discrete(3)})
    value = {"at": np.array([[1.5, -2.0], [0.25, 3.0]], dtype=np.float32), "flag": np.int64(2)}
    assert as_text(space, value) == "at:\n1.5 -2\n0.25 3\nflag: 2"
    pair = spaces.Tuple((spaces.MultiBinary(3), spaces.Text(5)))
    assert as_text(pair, (np.array([1, 0, 1], dtype=np.int8), "hi")) == "1 0 1; hi"


@pytest.mark.parametrize("env_id", ["Taxi-v4", "Pendulum-v1", "Blackjack-v1"])
def test_sampled_actions_are_valid(env_id):
    env, rng = made(env_id), random.Random(0)
    for seed in range(10):
        env.reset(seed=seed)
        assert env.step(env.sample_action(rng))[4]["metrics"]["action_is_valid"]


@pytest.mark.parametrize(
    ("env_id", "config", "message"),
    [
        ("Nothing-v3", {}, "`Nothing` doesn't exist"),
        ("CartPole-v1", {"foo": 1}, "unexpected keyword argument 'foo'"),
        ("Taxi-v4", {"actions": ["a"]}, "env_config.actions has 1 names for Discrete(6)"),
    ],
)
def test_a_mistake_is_one_line(env_id, config, message):
    with pytest.raises(ConfigError) as told:
        made(env_id, **config)
    assert message in str(told.value) and "\n" not in str(told.value)


def test_too_many_numbers_are_refused():
    class Radar(Parrot):
        observation_space = spaces.Box(0, 1, (64, 64), np.float32)

    gymnasium.register("ajet-tests/Radar-v0", entry_point=Radar)
    try:
        with pytest.raises(ConfigError, match="cannot be written as text; set env_config"):
            GymnasiumEnvironment("ajet-tests/Radar-v0")
    finally:
        del gymnasium.registry["ajet-tests/Radar-v0"]
