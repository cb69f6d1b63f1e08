"""What a config of another system says of agents, environments and their sampling is kept."""

import json

import pytest

from ajet.convert import convert, yaml_text
from ajet.convert.roll_envs import BOXED
from ajet.core.config import load_config
from ajet.core.environment.registry import environment_maker
from ajet.core.errors import ConfigError
from tests.convert.test_convert import GRAPH, LAKE, TOOLS, left_out, loaded, written

ROLL = "sequence_length: 9\npretrain: m\n"


def environment(tmp_path, text):
    source = written(tmp_path, f"{ROLL}custom_envs: {{Mine: {text}}}")
    result = convert("roll", source)
    return loaded(result, tmp_path).ajet.environment.custom_envs["Mine"], result


def test_verls_file_of_agent_loops_is_kept(tmp_path):
    key = "actor_rollout_ref.rollout.agent.agent_loop_config_path"
    loop = "actor_rollout_ref.rollout.agent.default_agent_loop"
    result = convert("verl", TOOLS, [f"{key}=recipe/agent.yaml", f"{loop}=math_expression"])
    rollout = loaded(result, tmp_path).ajet.rollout
    assert rollout.agent.agent_loop_config_path == "recipe/agent.yaml"
    assert rollout.user_workflow == "math_expression"
    assert key not in left_out(result)


def test_a_simulated_user_of_verls_without_tools_is_played_with(tmp_path):
    turns = "actor_rollout_ref.rollout.multi_turn"
    source = written(tmp_path, "actor_rollout_ref: {model: {path: m}}")
    keys = [f"+{turns}.interaction_config_path=user.yaml", f"+{turns}.enable=True"]
    result = convert("verl", source, keys)
    assert result.values["ajet.rollout.user_workflow"] == "tool_agent"
    assert result.values["ajet.rollout.multi_turn.interaction_config_path"] == "user.yaml"
    disabled = convert("verl", source, [keys[0], f"+{turns}.enable=False"])
    assert "ajet.rollout.user_workflow" not in disabled.values


@pytest.mark.parametrize("section", ["runtime_args", "models.policy", "models.agent"])
@pytest.mark.parametrize("value", ["[graphs.py,more.graphs]", "graphs.py"])
def test_chatlearns_agent_modules_are_kept(tmp_path, section, value):
    result = convert("chatlearn", GRAPH, [f"+{section}.agent_modules={value}"])
    modules = loaded(result, tmp_path).ajet.rollout.agent_modules
    assert modules == value.strip("[]").split(",")
    assert not [text for text in result.to_do if "agent_modules" in text]


TURNS = """
runtime_args: {task_type: agent, exp_name: turns, sample_per_episode: 8, data_path: d/train.json}
models:
  policy_trainer: {load: some/model}
  policy: {max_prompt_tokens_length: 300, max_response_tokens_length: 200, num_inference_per_prompt: 4}
"""  # noqa: E501
BOUNDS = ("ajet.data.max_response_length", "ajet.rollout.max_model_len")


def test_chatlearns_limit_of_a_call_is_no_limit_of_the_conversation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = convert("chatlearn", written(tmp_path, TURNS))
    assert result.values["ajet.rollout.max_response_length_in_one_turn"] == 200
    assert result.values["ajet.data.max_prompt_length"] == 300
    assert tuple(result.blanks) == BOUNDS and not set(BOUNDS) & set(result.values)
    assert any(text.startswith(f"{' and '.join(BOUNDS)}: ") for text in result.to_do)
    (tmp_path / "mine.yaml").write_text(yaml_text(result))
    with pytest.raises(ConfigError, match=r"ajet\.data\.max_response_length is left blank"):
        load_config(tmp_path / "mine.yaml")


@pytest.mark.parametrize("form", ["[{}, {}, {}]", "{}\n{}\n{}\n"])
def test_the_cfgs_of_the_graphs_that_the_rows_name_bound_a_conversation(
    form, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    for name, total in (("a.yaml", 700), ("b.yaml", 900)):
        (tmp_path / name).write_text(f"max_total_token_length: {total}\n")
    rows = [json.dumps({"agent_cfg_path": name}) for name in ("a.yaml", "b.yaml", "a.yaml")]
    (tmp_path / "d" / "train.json").write_text(form.format(*rows))
    result = convert("chatlearn", written(tmp_path, TURNS))
    assert [result.values[key] for key in BOUNDS] == [900, 900]
    assert result.origins[BOUNDS[0]] == "max_total_token_length of the rows' agent_cfg_path"
    (tmp_path / "c.yaml").write_text("max_ai_message_turn: 3\n")
    (tmp_path / "d" / "train.json").write_text(json.dumps({"agent_cfg_path": "c.yaml"}))
    assert convert("chatlearn", tmp_path / "source.yaml").blanks.keys() == set(BOUNDS)


def test_without_agents_chatlearns_limit_is_that_of_the_answer(tmp_path):
    result = convert("chatlearn", written(tmp_path, TURNS.replace("agent,", "chat,")))
    assert [result.values[key] for key in BOUNDS] == [200, 500]


def test_a_chatlearn_config_of_agents_says_where_their_files_are_named():
    assert [text for text in convert("chatlearn", GRAPH).to_do if "agent_modules" in text]
    plain = convert("chatlearn", GRAPH, ["runtime_args.task_type=chat"])
    assert not [text for text in plain.to_do if "agent_modules" in text]


def test_a_setting_of_rolls_that_is_null_is_no_change():
    overrides = ["agent_runner_cls=null", "some_switch=null", "actor_train.model_args.zzz=null"]
    overrides += ["custom_env.Lake.agent_runner_cls=null", "custom_env.Lake.env_config.zzz=null"]
    overrides = [f"+{each}" for each in overrides]
    assert left_out(convert("roll", LAKE, overrides)) == left_out(convert("roll", LAKE))
    named = convert("roll", LAKE, ["+custom_env.Lake.agent_runner_cls=a.Runner"])
    assert left_out(named)["custom_envs.Lake.agent_runner_cls"] == "algorithm"


def test_rolls_names_of_reasoning_gym_become_ours(tmp_path):
    config = "{env_type: 'rg:spell_backward', env_config: {max_word_len: 6, size: 500, seed: 4}}"
    there, result = environment(tmp_path, config)
    assert there.env_type == "reasoning_gym:spell_backward"
    assert there.env_config == {"max_word_len": 6}
    assert (there.action_pattern, there.agent_system_template) == (BOXED, "")
    assert left_out(result)["custom_envs.Mine.env_config.seed"] == "machine"
    assert not [text for text in result.to_do if "no environment" in text]


def test_an_environment_of_rolls_that_is_registered_elsewhere_is_a_thing_to_do(tmp_path):
    there, result = environment(tmp_path, "{env_type: my_maze, env_config: {size: 4}}")
    assert there.env_type == "my_maze"
    assert result.to_do[0] == (
        "custom_envs.Mine: there may be no environment 'my_maze' here; write yours as "
        "file.py->Class at ajet.environment.custom_envs.Mine.env_type"
    )


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        (r"\boxed{4}", "4"),
        (r"\boxed{1}, so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("4", None),
    ],
)
def test_the_answer_to_such_a_question_is_the_last_boxed_text(reply, action):
    from ajet.agents.environment_settings import ActionReader

    assert ActionReader(BOXED, "here").find_action(reply) == action


MINE = """
class Mine:
    def __init__(self, max_steps=1, format_penalty=0.0, action_pattern="x", env_instruction=None):
        self.given = (max_steps, format_penalty, action_pattern, env_instruction)

    def reset(self, seed=None):
        return "x", {}

    def step(self, action):
        return "x", 0.0, True, False, {}
"""


def test_a_class_of_the_users_keeps_its_arguments_and_reads_the_whole_reply(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    config = "{max_steps: 5, format_penalty: -0.2, action_pattern: '<a>(.*)</a>'"
    config = f"{{env_type: mine.py->Mine, env_config: {config}, env_instruction: Go.}}}}"
    there, _ = environment(tmp_path, config)
    assert there.action_pattern is None
    assert there.format_penalty == 0.0  # the class adds its own
    assert (there.max_steps, there.agent_system_template) == (5, "{env_instruction}")
    maker = environment_maker(there.env_type, there.env_config, [tmp_path], "here")
    assert maker()._environment.given == (5, -0.2, "<a>(.*)</a>", "Go.")


MANAGERS = """
train_env_manager:
  generating_args: {max_new_tokens: 128, top_p: 0.99, top_k: 100, temperature: 0.99}
val_env_manager:
  generating_args: {max_new_tokens: 128, top_p: 0.99, top_k: 100, temperature: 0.2}
"""


def sampling(source, tmp_path, *overrides):
    rollout = loaded(convert("roll", source, overrides), tmp_path).ajet.rollout
    val = rollout.val_kwargs
    trained = (rollout.temperature, rollout.top_p, rollout.top_k)
    return trained, (val.temperature, val.top_p, val.top_k)


def test_the_sampling_of_rolls_environment_managers_is_kept_where_the_engine_has_none(tmp_path):
    source = written(tmp_path, ROLL + MANAGERS)
    assert sampling(source, tmp_path) == ((0.99, 0.99, 100), (0.2, 0.99, 100))
    result = convert("roll", source)
    assert result.values["ajet.rollout.max_response_length_in_one_turn"] == 128
    assert not [key for key in left_out(result) if "generating_args" in key]


def test_the_engines_sampling_takes_the_place_of_the_managers_in_roll(tmp_path):
    source = written(tmp_path, ROLL + MANAGERS)
    engine = "+actor_infer.generating_args.temperature=0.5"
    assert sampling(source, tmp_path, engine) == ((0.5, 0.7, 50), (None, None, None))
    left = left_out(convert("roll", source, [engine]))
    assert left["val_env_manager.generating_args.temperature"] == "machine"


def test_a_manager_that_says_a_part_has_rolls_defaults_for_the_rest(tmp_path):
    source = written(
        tmp_path, f"{ROLL}train_env_manager: {{generating_args: {{temperature: 0.8}}}}"
    )
    assert sampling(source, tmp_path) == ((0.8, 0.7, 50), (None, None, None))
    assert sampling(written(tmp_path, ROLL), tmp_path)[0] == (0.95, 0.7, 50)
