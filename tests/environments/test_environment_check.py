"""`ajet inspect env`: what is sound passes, and each kind of fault is found."""

import itertools
import json

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app
from ajet.core.environment.environment import Environment
from ajet.core.environment.registry import environment_maker
from ajet.environments.check import EnvironmentCheck
from tests.corridor import Corridor, corridor_config

PLACE = "tests.environments.test_environment_check"
_count = itertools.count()


class Restless(Corridor):
    """Its reward depends on how often it was asked, in whatever episode."""

    def step(self, action):
        text, _, *rest = super().step(action)
        return text, float(next(_count)), *rest


class Infinite(Corridor):
    def step(self, action):
        text, _, *rest = super().step(action)
        return text, float("inf"), *rest


class Mute(Corridor):
    def _seen(self):
        return " "


class Misled(Corridor):
    def oracle_action(self):
        return "Left"


class Offering(Corridor):
    def sample_action(self, rng):
        return "Up"


class Restarting(Corridor):
    """Text that is no action moves it."""

    def step(self, action):
        text, reward, terminated, truncated, info = super().step(action)
        if not info["metrics"]["action_is_valid"]:
            info["state_key"] = "elsewhere"
        return text, reward, terminated, truncated, info


class FewStarts(Corridor):
    """Begins at one of four places; those of held-out games are the same ones, unless `divides`."""

    def __init__(self, divides=False):
        super().__init__(length=9)
        self.divides = divides

    def reset(self, seed=None, options=None):
        self.place = seed % 4
        if self.divides and options["split"] == "validation":
            self.place += 4
        return self._seen(), {"state_key": str(self.place)}


class Bare(Environment):
    """Nothing but what must be."""

    def reset(self, seed=None, options=None):
        return f"seed {seed}", {}

    def step(self, action):
        return "over", 1.0, True, False, {}


class Strict(Bare):
    """Takes numbers alone."""

    def step(self, action):
        return "over", float(action), True, False, {}


class Short(Bare):
    def step(self, action):
        return "over", 1.0, True


class Seedless(Bare):
    def reset(self):
        return "begins", {}


class Plain:
    """Derives from nothing; each seed has a goal of one digit."""

    def reset(self, seed=None):
        self.goal = str(seed % 10)
        return "guess", {}

    def step(self, action):
        return "no", float(action == self.goal), action == self.goal, False, {}


class PlainWithAgents(Plain):
    def sample_action(self, rng):
        return str(rng.randrange(10))

    def oracle_action(self):
        return self.goal


class PlainOfRoll(Plain):
    def sample_random_action(self):
        return "a"


def report_of(kind, **env_config):
    maker = environment_maker(f"{PLACE}->{kind}", env_config, [], "test")
    return EnvironmentCheck(maker, num_seeds=4, group_size=3, seed=0, max_steps=6).run()


def test_a_sound_environment_has_no_fault_and_its_agents_figures():
    report = report_of("Corridor")
    assert report.faults == []
    assert report.notes == ["every seed begins with the same observation"]
    random, oracle = report.agents
    assert (random.num_episodes, oracle.num_episodes) == (12, 4)
    assert (oracle.success, oracle.num_steps, oracle.reward_std) == (1.0, 2.0, 0.0)
    assert oracle.reward_mean == pytest.approx(0.9)
    assert random.reward_min < random.reward_max == oracle.reward_max
    assert 0.0 <= report.silent_groups <= 1.0
    assert report.seconds_per_step > 0


def test_a_group_whose_rewards_are_all_equal_is_silent():
    report = report_of("Corridor", length=1000)  # never reached: six steps of -0.1 each
    assert report.silent_groups == 1.0
    assert "no group of the random agent carries a signal" in report.notes


def test_held_out_games_that_are_training_games_are_noted():
    shared = "held-out games begin with the observation of a training game"
    assert any(shared in note for note in report_of("FewStarts").notes)
    assert not any(shared in note for note in report_of("FewStarts", divides=True).notes)
    assert report_of("FewStarts", divides=True).faults == []


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("Restless", "not determined by its seed: step 1 gives another reward"),
        ("Infinite", "Infinite.step(): the reward is inf, not a finite number"),
        ("Mute", "an observation is empty"),
        ("Misled", "the oracle earns less than random actions do"),
        ("Offering", "sample_action() gave 'Up', which step() calls invalid"),
        ("Restarting", "'?!' is invalid and yet changed the state_key"),
        ("Strict", ": models write such text too; answer '?!' with an observation that says"),
        ("Short", "Short.step(): returned a tuple of 3, not (observation, reward, terminated, "),
    ],
)
def test_each_fault_is_found(kind, fault):
    assert any(fault in line for line in report_of(kind).faults)


def test_the_form_of_both_methods_is_shown_at_once_where_one_is_wrong():
    report = report_of("Short")
    assert "reset(seed, options) returns (observation, info)" in report.notes[-1]
    assert "step(action) returns (observation, reward, terminated" in report.notes[-1]


@pytest.mark.parametrize("kind", ["Bare", "Plain"])
def test_an_environment_without_agents_is_reported(kind):
    report = report_of(kind)
    assert (report.agents, report.faults) == ([], [])
    assert any("no sample_action()" in note for note in report.notes)
    assert any("no oracle_action()" in note for note in report.notes)


@pytest.mark.parametrize(
    ("kind", "agents"),
    [("PlainWithAgents", ["random", "oracle"]), ("PlainOfRoll", ["random"])],
)
def test_a_class_that_derives_from_nothing_has_the_agents_that_it_defines(kind, agents):
    report = report_of(kind)
    assert report.faults == []
    assert [played.name for played in report.agents] == agents
    assert [played.success for played in report.agents if played.name == "oracle"] in ([], [1.0])


def shown(*args):
    result = CliRunner().invoke(app, ["env-check", *args, "--episodes", "3", "--group-size", "2"])
    return result.exit_code, result.output


def test_the_command_ends_with_1_where_a_fault_was_found():
    assert shown(f"{PLACE}->Corridor")[0] == 0
    assert "nobody played it" in shown(f"{PLACE}->Bare")[1]
    code, output = shown(f"{PLACE}->Infinite")
    assert code == 1
    assert "fault: Infinite.step(): the reward is inf" in output


def test_the_command_takes_an_environment_and_its_steps_from_a_yaml(tmp_path):
    corridor_config(tmp_path, env_config={"length": 3})
    code, output = shown("--conf", str(tmp_path / "run.yaml"))
    assert code == 0
    assert "│ oracle │ 3 │ 100.0% │ 0.8 to 0.8 │ 0.800 │" in " ".join(output.split())


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ((), "Usage"),
        (("nowhere",), "no environment 'nowhere'"),
        ((f"{PLACE}->Seedless",), "Seedless.reset cannot be called with (seed, options): write "),
        (("frozen_lake", "--env-config", "[1]"), "is not a JSON object"),
        (("frozen_lake", "--env-config", json.dumps({"size": 1})), "size 1"),
    ],
)
def test_an_environment_that_cannot_be_checked_is_one_line(args, told):
    result = CliRunner().invoke(app, ["env-check", *args])
    assert result.exit_code != 0
    assert told in result.output
