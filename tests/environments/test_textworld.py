"""TextWorld's games: scores as rewards, commands, splits; skipped where the package is absent."""

import sys
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from ajet.core.environment.registry import environment_maker
from ajet.core.errors import ConfigError
from ajet.environments.check import EnvironmentCheck

SETTINGS = {"level": 2, "num_games": 2, "num_validation_games": 1}


def maker_of(name="coin_collector", **config):
    return environment_maker(f"textworld:{name}", config, [], "custom_envs.x.env_type")


def test_a_missing_package_is_one_line_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "textworld", None)
    with pytest.raises(ConfigError, match=r"needs textworld: .*\[textworld\]"):
        maker_of(level=2)()


@pytest.fixture
def textworld():
    return pytest.importorskip("textworld", reason="pip install 'ajet[textworld]'")


@pytest.mark.usefixtures("textworld")
def test_the_oracle_earns_the_whole_score_and_each_seed_is_one_game():
    report = EnvironmentCheck(maker_of(**SETTINGS), 2, 2, seed=0, max_steps=6).run()
    assert report.faults == []
    oracle = report.agents[1]
    assert (oracle.success, oracle.reward_min, oracle.reward_max) == (1.0, 1.0, 1.0)


@pytest.mark.usefixtures("textworld")
def test_the_first_observation_has_the_objective_the_score_and_the_commands():
    env = maker_of(**SETTINGS)()
    first, info = env.reset(seed=1, options={"split": "train"})
    assert "coin" in first
    assert "Score: 0 of 1." in first
    assert first.splitlines()[-1].startswith("Commands: ")
    assert env.sample_action(Random(0)) in first
    for command in ("go\n" + "x" * 200, "go \x14", "é"):  # the second crashes the interpreter
        refused = env.step(command)
        assert refused[1:4] == (0.0, False, False)
        assert refused[4] == {"metrics": {"action_is_valid": False}, "state_key": info["state_key"]}
    unknown = env.step("frobnicate")
    assert not unknown[4]["metrics"]["action_is_valid"]
    assert unknown[4]["state_key"] == info["state_key"]
    env.close()


@pytest.mark.usefixtures("textworld")
def test_episodes_in_many_threads_may_begin_at_the_same_time():
    make = maker_of(**SETTINGS)

    def first_room(seed: int) -> str:
        env = make()
        shown = env.reset(seed=seed, options={"split": "train"})[0]
        env.close()
        return shown

    with ThreadPoolExecutor(8) as pool:
        rooms = list(pool.map(first_room, [1, 2] * 8))
    assert len(rooms) == 16 and len(set(rooms)) <= 2


@pytest.mark.usefixtures("textworld")
def test_games_of_validation_are_none_of_training():
    env = maker_of(**SETTINGS)()
    shown = {
        split: {env.reset(seed=seed, options={"split": split})[0] for seed in range(6)}
        for split in ("train", "validation")
    }
    env.close()
    assert {split: len(games) for split, games in shown.items()} == {"train": 2, "validation": 1}
    assert not shown["train"] & shown["validation"]


@pytest.mark.usefixtures("textworld")
@pytest.mark.parametrize(
    ("name", "config", "told"),
    [
        ("coin", {}, "the challenges are coin_collector, cooking, simple, treasure_hunter"),
        ("coin_collector", {}, "arguments are required: --level"),
        ("coin_collector", {"level": "x"}, "invalid int value: 'x'"),
        ("coin_collector", {"level": 2, "rooms": 3}, "unrecognized arguments: --rooms"),
    ],
)
def test_mistakes_are_one_line(name, config, told):
    with pytest.raises(ConfigError, match=told):
        maker_of(name, **config)()


@pytest.mark.usefixtures("textworld")
def test_a_folder_without_games_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="the folder has no game"):
        maker_of(tmp_path)()
