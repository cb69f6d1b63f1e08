"""ScienceWorld's tasks with the real simulator; skipped where the package or Java is absent."""

import shutil
import sys

import pytest

from ajet.core.environment.registry import environment_maker
from ajet.core.errors import ConfigError
from ajet.environments import scienceworld

TASK = "find-living-thing"


def maker_of(name=TASK, **config):
    return environment_maker(f"scienceworld:{name}", config, [], "custom_envs.x.env_type")


@pytest.fixture
def simulator():
    pytest.importorskip("scienceworld", reason="pip install 'ajet[scienceworld]'")
    if shutil.which("java") is None:
        pytest.skip("no Java runtime")


def test_a_missing_package_is_one_line_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scienceworld", None)
    with pytest.raises(ConfigError, match=r"needs scienceworld: .*\[scienceworld\]"):
        maker_of()()


@pytest.mark.usefixtures("simulator")
def test_a_missing_java_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(scienceworld, "_gateways", [])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="PATH has no java: install"):
        maker_of()()


@pytest.mark.usefixtures("simulator")
def test_two_worlds_of_one_process_are_played_apart_and_the_oracle_earns_the_whole_score():
    env, other = (maker_of(simplifications="easy")() for _ in range(2))
    process = scienceworld._gateways[-1].java_process
    first, info = env.reset(seed=1, options={"split": "train"})
    same, _ = other.reset(seed=1, options={"split": "train"})
    assert first == same
    assert "Your task is to find a(n) living thing" in first
    assert "open OBJ" in info["env_instruction"]
    unknown = other.step("frobnicate")
    assert unknown[1:4] == (0.0, False, False)
    assert unknown[4]["metrics"]["action_is_valid"] is False
    other.step("go to kitchen")
    rewards, is_over = [], False
    while not is_over:
        action = env.oracle_action()
        assert action is not None
        _, reward, is_over, _, info = env.step(action)
        rewards.append(reward)
    assert info["metrics"]["success"]
    initial = float(first.split()[-3])
    assert sum(rewards) == pytest.approx(1 - initial, abs=0.005)
    assert "kitchen" in other.step("look around")[0]
    assert scienceworld._gateways[-1].java_process is process


@pytest.mark.usefixtures("simulator")
def test_variations_of_a_split_are_the_packages_and_none_of_another():
    found = {split: set(scienceworld.variations_of(TASK, split)) for split in ("train", "dev")}
    assert [len(each) for each in found.values()] == [150, 75]
    assert not found["train"] & found["dev"]


@pytest.mark.usefixtures("simulator")
@pytest.mark.parametrize(
    ("name", "config", "told"),
    [
        ("fly", {}, "no task of this name; there are boil, "),
        ("melt", {"simplifications": "hard"}, "there is no 'hard'; there are easy, "),
        ("melt", {"validation_variations": "x"}, "must be dev or test"),
        ("melt", {"rooms": 3}, "has no setting 'rooms'"),
    ],
)
def test_mistakes_are_one_line(name, config, told):
    with pytest.raises(ConfigError, match=told):
        maker_of(name, **config)()
