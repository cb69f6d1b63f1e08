"""Environment classes as ROLL's users have them: on gem's base class, by their signature."""

import json
import sys

import pytest

from ajet.agents.environment_settings import check_settings
from ajet.compat.roll import all_seed, default_parser_action_func
from ajet.core.config import load_config
from ajet.core.environment.live import open_environment
from ajet.core.environment.registry import environment_maker
from ajet.core.errors import ConfigError, EnvironmentFault
from ajet.core.task.task import Task
from tests.agents.agent_runs import TOKENIZER
from tests.fakes import ScriptedEndpoint, episode_runner

CHOICE = """
import random
from typing import Optional

from ajet.compat.roll import Env, all_seed, default_parser_action_func


class ChoiceEnv(Env):
    ACTION_LOOKUP = {0: "Rock", 1: "Paper"}

    def __init__(
        self,
        max_steps: int = 3,
        format_penalty: float = -0.1,
        action_pattern: str = r"<answer>(.*?)</answer>",
        special_token_list: tuple = ("<|im_end|>",),
        env_instruction: Optional[str] = None,
        **kwargs,
    ):
        self.max_steps, self.format_penalty = max_steps, format_penalty
        self.action_pattern, self.special_token_list = action_pattern, special_token_list
        self.env_instruction = env_instruction or "Choose."
        self.extra = kwargs

    def get_instructions(self) -> str:
        return self.env_instruction + " There are " + ", ".join(self.ACTION_LOOKUP.values())

    def reset(self, seed: Optional[int] = None):
        Env.reset(self, seed)
        with all_seed(seed):
            self.wanted = random.choice([0, 1])
        self.step_count = 0
        return self.render(), {"env_instruction": f"{self.get_instructions()}."}

    def step(self, action: str):
        self.step_count += 1
        parsed = self.parse_action(action)
        is_valid = parsed["action"] is not None
        success = parsed["action"] == self.wanted
        reward = float(success) if is_valid else self.format_penalty
        over = success or self.step_count >= self.max_steps
        metrics = {"action_is_valid": is_valid, "success": success, "format_penalty": 0.0}
        modes = {"action_is_valid": "mean", "success": "last", "format_penalty": "mean"}
        info = {"metrics": metrics, "metrics_agg_mode": modes, **parsed}
        return self.render(), reward, over, False, info

    def parse_action(self, text):
        return default_parser_action_func(
            text, self.action_pattern, self.ACTION_LOOKUP, self.special_token_list
        )

    def render(self, mode: str = "text"):
        return f"Step {self.step_count}." if hasattr(self, "step_count") else "Begin."

    def sample_random_action(self):
        return random.choice(list(self.ACTION_LOOKUP.values()))


class WithOptions:
    instruction = "Say yes."

    def reset(self, seed, options):
        return f"{seed} {options['split']}", {}

    def step(self, action):
        return "over", float(action == "yes"), True, False, {}


class KeywordOnly(WithOptions):
    def reset(self, *, seed=None, **kwargs):
        return f"{seed} {kwargs['options']['split']}", {}


class NoSeed(WithOptions):
    def reset(self):
        return "x", {}


class NoStep:
    def reset(self, seed=None):
        return "x", {}


class OddInstruction(WithOptions):
    def reset(self, seed=None):
        return "x", {"env_instruction": 5}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "choice.py").write_text(CHOICE)
    return tmp_path


def maker(folder, name, **env_config):
    return environment_maker(f"choice.py->{name}", env_config, [folder], "here")


@pytest.mark.parametrize("name", ["WithOptions", "KeywordOnly"])
async def test_reset_gets_what_its_signature_names(folder, name):
    async with open_environment(maker(folder, name)) as environment:
        shown = await environment.reset(7, {"split": "train"})
        assert shown.observation == "7 train"
        assert environment.instruction == "Say yes."
        assert (await environment.step("yes")).reward == 1.0
        assert await environment.render() == "over"


@pytest.mark.parametrize("isolation", ["auto", "process"])
async def test_a_class_on_gems_base_plays_from_its_seed_and_tells_its_own_rules(folder, isolation):
    made = maker(folder, "ChoiceEnv", env_instruction="Pick.", odd=1)
    played = []
    for _ in range(2):
        async with open_environment(made, isolation) as environment:
            shown = await environment.reset(5, {"split": "train"})
            assert shown.observation == "Step 0."
            assert shown.instruction == "Pick. There are Rock, Paper."
            assert environment.instruction == "Pick. There are Rock, Paper"  # before the reset
            step = await environment.step("I choose <answer>rock</answer><|im_end|>")
            played.append((step.reward, step.metrics["action_is_valid"], step.terminated))
    assert played[0] == played[1]
    assert played[0][1] == 1


MISTAKES = [
    ("NoSeed", {}, "NoSeed.reset takes no seed: write reset(self, seed=None)"),
    ("NoStep", {}, "NoStep is not an environment: it has no step; write reset(seed)"),
    ("WithOptions", {"size": 4}, "has no setting 'size'"),
]


@pytest.mark.parametrize(("name", "env_config", "message"), MISTAKES)
def test_a_class_that_cannot_be_played_is_one_line(folder, name, env_config, message):
    with pytest.raises(ConfigError) as error:
        maker(folder, name, **env_config)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


async def test_an_instruction_that_is_no_text_is_a_fault_of_the_environment(folder):
    async with open_environment(maker(folder, "OddInstruction")) as environment:
        with pytest.raises(EnvironmentFault, match=r"info\['env_instruction'\] is the int '5'"):
            await environment.reset(1, {})


def config_of(folder, **custom):
    custom = {"env_type": "choice.py->ChoiceEnv", "max_steps": 4, **custom}
    ajet = {
        "model": {"path": "m"},
        "task_reader": {"type": "environment"},
        "environment": {"custom_envs": {"Choice": custom}},
    }
    (folder / "run.yaml").write_text(json.dumps({"ajet": ajet}))
    return load_config(folder / "run.yaml")


def test_a_class_that_reads_replies_itself_is_not_given_a_part_of_them(folder):
    check_settings(config_of(folder, action_pattern=None), "{observation}")
    with pytest.raises(ConfigError) as error:
        check_settings(config_of(folder), "{observation}")
    assert "custom_envs.Choice.action_pattern: ChoiceEnv finds the action in a reply itself" in str(
        error.value
    )


async def test_an_agent_tells_the_rules_that_reset_gave_and_hands_on_the_whole_reply(folder):
    from ajet.agents.traj_env_agent import TrajEnvAgent
    from ajet.core.rollout.request import RolloutRequest

    config = config_of(folder, action_pattern=None)
    endpoint = ScriptedEndpoint(TOKENIZER, lambda *_: "So: <answer>Paper</answer>")
    runner = episode_runner(TrajEnvAgent, endpoint, TOKENIZER, config=config)
    task = Task("t", "play", metadata={"tag": "Choice"})
    [group] = await runner.rollout(RolloutRequest([task], step=0, mode="train", num_repeat=1))
    t = group.trajectories[0]
    assert t.turns[0].messages[0]["content"] == "Choose. There are Rock, Paper."
    assert t.output.log_metrics["Choice/invalid_actions"] == 0
    assert t.output.metadata["trace"][0]["action"] == "So: <answer>Paper</answer>"


def test_an_import_of_gem_says_where_its_base_class_is(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "gem", None)
    (folder / "unchanged.py").write_text("from gem import Env\n")
    with pytest.raises(ConfigError, match=r"import its names from ajet\.compat\.roll"):
        environment_maker("unchanged.py->Mine", {}, [folder], "here")


@pytest.mark.parametrize(
    ("text", "pattern", "lookup", "wanted"),
    [
        ("<answer> up </answer><|e|>", "<answer>(.*?)</answer>", {1: "Up"}, (1, "up", "")),
        ("<answer>off</answer>", "<answer>(.*?)</answer>", {1: "Up"}, (None, "off", "")),
        ("<answer>off</answer>", "<answer>(.*?)</answer>", None, ("off", "off", "")),
        ("<t>why</t><a>Up</a>", "<t>(.*?)</t><a>(.*?)</a>", {1: "Up"}, (1, "Up", "why")),
        ("nothing", "<answer>(.*?)</answer>", {1: "Up"}, (None, "", "")),
    ],
)
def test_an_action_is_read_from_a_reply_as_roll_reads_it(text, pattern, lookup, wanted):
    read = default_parser_action_func(text, pattern, lookup, ("<|e|>",))
    assert (read["action"], read["action_content"], read["think_content"]) == wanted


def test_a_thought_that_never_ends_names_no_action():
    reply = "<think><answer>Up</answer>"
    pattern = "<answer>(.*?)</answer>"
    assert default_parser_action_func(reply, pattern, None, None)["action"] == "Up"
    read = default_parser_action_func(reply, pattern, None, None, enable_thinking=True)
    assert (read["action"], read["thinking_truncated"]) == (None, True)
    closed = f"{reply}</think><answer>Down</answer>"
    assert default_parser_action_func(closed, pattern, None, None, True)["action"] == "Down"


def test_seeding_restores_the_global_generators():
    import random

    random.seed(1)
    before = random.getstate()
    with all_seed(5):
        drawn = random.random()
    assert random.getstate() == before
    with all_seed(5):
        assert random.random() == drawn


SUFFIX = """
class Suffixed:
    def __init__(self, last="Go on."):
        self.last = last

    def reset(self, seed=None):
        return "a door", {"suffix": "Open it?"}

    def step(self, action):
        return "a room", 0.0, True, False, {"suffix": self.last}
"""


async def test_the_suffix_of_an_info_is_below_the_observation(tmp_path):
    (tmp_path / "suffixed.py").write_text(SUFFIX)
    spec = f"{tmp_path}/suffixed.py->Suffixed"
    for last, shown in [("Go on.", "a room\nGo on."), ("", "a room"), (None, "a room")]:
        maker = environment_maker(spec, {"last": last}, [tmp_path], "test")
        async with open_environment(maker, "inline") as environment:
            assert (await environment.reset(1, {})).observation == "a door\nOpen it?"
            assert (await environment.step("open")).observation == shown
    maker = environment_maker(spec, {"last": 3}, [tmp_path], "test")
    async with open_environment(maker, "inline") as environment:
        await environment.reset(1, {})
        with pytest.raises(EnvironmentFault, match=r"info\['suffix'\] is a int, not text"):
            await environment.step("open")


def test_a_vector_environment_is_refused_with_what_to_name(tmp_path):
    (tmp_path / "many.py").write_text(
        "from gymnasium.vector import SyncVectorEnv\n\nclass Many(SyncVectorEnv):\n    pass\n"
    )
    with pytest.raises(ConfigError, match="name the class or the id of a single environment"):
        environment_maker("many.py->Many", {}, [tmp_path], "custom_envs.x.env_type")
