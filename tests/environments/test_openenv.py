"""Environments of OpenEnv: what goes over the wire, actions as text, and servers that misbehave."""

import json
import random
import sys
from pathlib import Path

import pytest

from ajet.core.environment.live import open_environment
from ajet.core.environment.registry import environment_maker
from ajet.core.errors import ConfigError, EnvironmentFault
from ajet.environments.check import EnvironmentCheck
from ajet.environments.json_action import ActionForm, ToolForm, fields_text
from tests.openenv_server import Guessing, observed, openenv_server


def maker_of(url, **config):
    return environment_maker(f"openenv:{url}", config, [], "custom_envs.x.env_type")


def test_an_episode_is_a_session_of_the_protocol():
    with openenv_server() as (url, received):
        env = maker_of(url, reset={"level": "easy"})()
        assert env.instruction == "Write an action: A number (integer, as JSON)."
        assert env.reset(seed=27) == ("guess easy", {})
        assert env.step("9")[:4] == ("lower", 0.0, False, False)
        assert env.step("7") == (
            "right", 1.0, True, False, {"metrics": {"action_is_valid": True, "success": True}},
        )  # fmt: skip
        env.close()
    assert received == [
        {"type": "reset", "data": {"level": "easy", "seed": 27}},
        {"type": "step", "data": {"guess": 9}},
        {"type": "step", "data": {"guess": 7}},
    ]


@pytest.mark.parametrize("text", ["seven", "", "[" * 5000, "1" * 6000, "11", '"7"'])
def test_text_that_is_no_action_leaves_the_state_and_shows_the_form(text):
    with openenv_server() as (url, _):
        env = maker_of(url)()
        env.reset(seed=3)
        observation, reward, *ended, info = env.step(text)
        assert observation == f"{env.instruction}\nguess any"
        assert (reward, *ended) == (0.0, False, False)
        assert info == {"metrics": {"action_is_valid": False}}
        assert env.step("3")[2]
        env.close()


def test_env_check_plays_a_server():
    with openenv_server() as (url, _):
        report = EnvironmentCheck(maker_of(url), 3, 2, seed=0, max_steps=5).run()
    assert report.faults == []
    assert report.agents[0].num_episodes == 6


def test_several_fields_are_a_json_object_or_the_one_that_the_config_names():
    schema = {
        "properties": {
            "move": {"$ref": "#/$defs/Move"},
            "times": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            "kind": {"const": "move", "type": "string"},
        },
        "required": ["move"],
        "$defs": {"Move": {"enum": ["up", "down"], "type": "string"}},
    }
    form = ActionForm.from_schema(schema)
    assert form.instruction() == (
        "Write an action: a JSON object with these fields.\n"
        '- move (one of ["up", "down"])\n- times (integer, optional)'
    )
    assert form.read('{"move": "up"}') == {"move": "up"}
    assert form.read("up") is None
    assert form.read(form.sample(random.Random(0))).keys() == {"move", "times"}
    one = ActionForm.from_schema(schema, "move")
    assert one.instruction() == "Write one action: up, down."
    assert one.read("up") == {"move": "up"}
    with pytest.raises(KeyError):
        ActionForm.from_schema(schema, "turn")


def test_an_unknown_action_field_is_an_error_that_lists_the_known_ones():
    with (
        openenv_server() as (url, _),
        pytest.raises(ConfigError, match="no field 'turn'; it has guess"),
    ):
        maker_of(url, action_field="turn")()


def test_observations_are_their_fields_as_text():
    assert fields_text({"board": "X.\n.O", "turn": 3, "free": [1, 2]}) == (
        "board:\nX.\n.O\nturn: 3\nfree: [1, 2]"
    )
    assert fields_text({"text": "a\nb"}) == "a\nb"


class Tools(Guessing):
    """An environment of one MCP tool, `look`."""

    schema = {"properties": {"metadata": {"type": "object"}}}

    def step(self, data):
        if data["type"] == "list_tools":
            arguments = {"properties": {"at": {"type": "string"}}, "required": ["at"]}
            tool = {"name": "look", "description": "Looks  at\nit.", "input_schema": arguments}
            return observed(tools=[tool])
        at = data["arguments"].get("at")
        if at is None:
            return observed(tool_name="look", result=None, error={"message": "at is missing"})
        content = [{"type": "text", "text": f"a {at}"}, {"type": "image", "data": ""}]
        return observed(0.5, tool_name="look", result={"content": content}, error=None)


def test_an_environment_of_tools_lists_them_and_its_actions_are_calls():
    with openenv_server(Tools) as (url, received):
        env = maker_of(url)()
        assert env.instruction == (
            'Write an action: {"name": a tool, "arguments": {…}}. The tools:\n'
            "look: Looks at it.\n- at (string)"
        )
        env.reset(seed=1)
        assert env.step('{"name": "look", "arguments": {"at": "door"}}')[:2] == ("a door", 0.5)
        assert env.step('{"name": "look"}')[0] == "Error: at is missing"
        assert not env.step('{"name": "hear"}')[4]["metrics"]["action_is_valid"]
        assert isinstance(env.form, ToolForm)
        assert env.form.read(env.sample_action(random.Random(0)))[0] == "look"
        env.close()
    assert received[2]["data"] == {
        "type": "call_tool", "tool_name": "look", "arguments": {"at": "door"},
    }  # fmt: skip


STEPS = {
    "no JSON": "{",
    "no object": "[1]",
    "no data": json.dumps({"type": "observation"}),
    "no observation": json.dumps({"type": "observation", "data": {"observation": 3}}),
    "too deep": "[" * 100_000,
    "huge": "x" * (17 << 20),
    "silence": None,
    "an error": {"type": "error", "data": {"code": "EXECUTION_ERROR", "message": "boom\nbang"}},
    "nan": '{"type": "observation", "data": {"observation": {"a": "b"}, "reward": NaN}}',
    "text as reward": observed("much", text="b"),
    "text as done": observed(0.5, "no", text="b"),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
async def test_whatever_a_server_answers_is_a_fault_of_one_line(step):
    class Hostile(Guessing):
        def step(self, data):
            return step

    with openenv_server(Hostile) as (url, _):
        async with open_environment(maker_of(url, timeout_s=0.5)) as environment:
            await environment.reset(3, {})
            with pytest.raises(EnvironmentFault) as fault:
                await environment.step("3")
    assert "\n" not in str(fault.value)
    assert len(str(fault.value)) < 600


@pytest.mark.parametrize("schema", ["{", "[]", '{"action": 3}', "x" * (17 << 20)])
def test_a_schema_that_is_none_is_a_fault(schema):
    class Hostile(Guessing):
        pass

    Hostile.schema = schema
    with openenv_server(Hostile) as (url, _), pytest.raises(EnvironmentFault):
        maker_of(url)()


def test_odd_schemas_are_read_without_an_error():
    for odd in ([], 3, None, {"x": 3}, {"x": {"enum": 3, "type": ["a"], "anyOf": [3]}}):
        form = ActionForm.from_schema({"properties": odd, "required": 3})
        assert isinstance(form.instruction(), str)
        assert isinstance(form.sample(random.Random(0)), str)


def test_a_server_that_is_not_there_is_one_line():
    with openenv_server() as (url, _):
        pass
    with pytest.raises(EnvironmentFault, match="is the server up"):
        maker_of(url)()


def test_a_server_without_room_says_what_to_raise():
    class Full(Guessing):
        def reset(self, data):
            return {"type": "error", "data": {"code": "CAPACITY_REACHED", "message": "1 of 1"}}

    with openenv_server(Full) as (url, _):
        env = maker_of(url)()
        with pytest.raises(EnvironmentFault, match="raise the server's max_concurrent_envs"):
            env.reset(1)
        env.close()


@pytest.mark.parametrize(
    ("name", "told"), [("ftp://x", "write openenv:http"), ("http://", "write openenv:http")]
)
def test_an_invalid_address_is_an_error(name, told):
    with pytest.raises(ConfigError, match=told):
        maker_of(name)()


def test_settings_of_a_server_are_refused():
    with pytest.raises(ConfigError, match=r"env_config\.size: the server made its environment"):
        maker_of("http://127.0.0.1:9", size=3)()


def test_a_class_of_this_process_plays_as_its_server_does(tmp_path, monkeypatch):
    pytest.importorskip("openenv", reason="pip install openenv")
    (tmp_path / "counting.py").write_text(Path(__file__).with_name("openenv_class.txt").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "counting", raising=False)
    env = environment_maker("openenv:counting.py->Counting", {"start": 3}, [tmp_path], "x")()
    assert env.reset(seed=2)[0] == "5"
    assert env.step("4")[:3] == ("9", 4.0, False)
    assert not env.step("x")[4]["metrics"]["action_is_valid"]
    env.close()


def test_a_reset_without_a_seed_and_a_step_that_returns_no_observation(tmp_path, monkeypatch):
    pytest.importorskip("openenv", reason="pip install openenv")
    text = Path(__file__).with_name("openenv_class.txt").read_text()
    text = text.replace("seed=None, episode_id=None", "self_made=1").replace(" + seed", "")
    text = text.replace("return Sum(total=self.total, reward=action.number)", "return State()")
    (tmp_path / "seedless.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    env = environment_maker("openenv:seedless.py->Counting", {"start": 3}, [tmp_path], "x")()
    assert env.reset(seed=2)[0] == "3"
    with pytest.raises(EnvironmentFault, match="step returned a State without reward, which is no"):
        env.step("4")
    env.close()
