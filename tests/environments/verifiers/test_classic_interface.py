"""Packages with `load_environment`: the program plays them by what their interface says.

`verifiers` is a stand-in of a few lines that has the same names; test_real_program.py has the real
one. The program runs in this interpreter.
"""

import sys

import pytest

from ajet.core.errors import ConfigError, DataError
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.core.workflow.registry import registered_workflow
from ajet.environments.verifiers.reader import VerifiersReader
from tests.agents.test_verifiers_agent import config_in, play, tasks_of

PACKAGE = """
import importlib, json, os, urllib.request
from verifiers.types import ClientConfig

def load_environment(env_id, **args):
    return importlib.import_module(env_id.replace("-", "_")).load_environment(**args)

class Rows(list):
    def to_list(self):
        return list(self)

class SingleTurnEnv:
    requires_group_rollouts = False

    def __init__(self, rows, reward, eval_rows=None):
        self.rows, self.reward, self.eval_rows = rows, reward, eval_rows

    def build_eval_dataset(self):
        return self.eval_rows

    def get_dataset(self, n=-1):
        return Rows(self.rows if n < 0 else self.rows[:n])

    def get_eval_dataset(self, n=-1):
        return Rows(self.eval_rows if n < 0 else self.eval_rows[:n])

    async def run_rollout(self, input, client, model, sampling_args):
        output = {"metrics": {}, "error": None, "stop_condition": "max_turns_reached"}
        body = {"model": model, "messages": input["prompt"]}
        headers = {"content-type": "application/json"}
        headers["authorization"] = "Bearer " + os.environ[client.api_key_var]
        url = client.api_base_url + "/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        reply = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
        output["completion"] = [{"role": "assistant", "content": reply}]
        output["reward"] = output["metrics"]["right"] = self.reward(reply, input["answer"])
        if reply == "broken":
            chain = "ModelError -> broken\\nhere"
            output["error"] = {"error": "ModelError", "error_chain_str": chain}
        return output
"""
TYPES = """
from dataclasses import dataclass

@dataclass
class ClientConfig:
    api_base_url: str
    api_key_var: str
    max_retries: int = 10
"""
SUMS = """
import verifiers as vf

def row(number):
    prompt = [{"role": "user", "content": f"{number}+1"}]
    return {"example_id": number, "prompt": prompt, "answer": str(number + 1), "info": None}

def right(reply, answer):
    return float(reply == answer)

def load_environment(first=0, with_eval=True, groups=False):
    print("loading")  # which must not get among the answers
    rows = [row(number) for number in range(first, first + 4)]
    env = vf.SingleTurnEnv(rows, right, [row(90)] if with_eval else None)
    env.requires_group_rollouts = groups
    return env
"""


@pytest.fixture
def make_config(tmp_path, monkeypatch):
    """Makes the config of an environment of the stand-in; its rows are sums."""
    (tmp_path / "verifiers").mkdir()
    (tmp_path / "verifiers" / "__init__.py").write_text(PACKAGE)
    (tmp_path / "verifiers" / "types.py").write_text(TYPES)
    (tmp_path / "my_sums.py").write_text(SUMS)
    monkeypatch.chdir(tmp_path)

    def make(**section):
        section = {"env": {"id": "my-sums"}} | section
        return config_in(tmp_path, **{"python": sys.executable} | section)

    return make


async def test_a_row_is_played_by_the_packages_loop_and_rewarded_by_its_rubric(make_config):
    config = make_config(env={"id": "my-sums", "args": {"first": 5}})
    tasks = tasks_of(config)
    assert [task.main_query for task in tasks] == ["5+1", "6+1", "7+1", "8+1"]
    right, wrong = await play(config, tasks[:2], "6")
    assert (right.reward, wrong.reward, right.error) == (1.0, 0.0, None)
    assert right.output.log_metrics == {"verifiers/right": 1.0}
    assert right.output.metadata == {"final_answer": "6", "ended_by": "max_turns_reached"}
    assert right.turns[0].reply["content"] == "6"


def test_held_out_tasks_may_be_the_environments_own_for_evaluation(make_config):
    reader = VerifiersReader(make_config(num_tasks=2, validation_env={"split": "eval"}))
    assert [task.main_query for task in reader.get_training_tasks()] == ["0+1", "1+1"]
    assert [task.main_query for task in reader.get_validation_tasks()] == ["90+1"]


async def test_an_error_of_a_rollout_fails_the_episode(make_config):
    config = make_config()
    [failed] = await play(config, tasks_of(config)[:1], "broken")
    assert failed.status is EpisodeStatus.ENV_ERROR
    assert "verifiers: ModelError -> broken here" in failed.error


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"id": "my-sums", "args": {"groups": True}}, "my-sums rewards whole groups"),
        ({"id": "my-sums", "args": {"last": 3}}, "unexpected keyword argument 'last'"),
        ({"id": "no-sums"}, "No module named 'no_sums'"),
        (
            {"id": "my-sums", "split": "eval", "args": {"with_eval": False}},
            "my-sums has no separate data set for evaluation",
        ),
    ],
)
def test_an_environment_that_cannot_be_played_is_told_in_one_line(make_config, env, told):
    with pytest.raises(DataError, match=told):
        VerifiersReader(make_config(env=env)).get_training_tasks()


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"env": {"args": {}}}, r"verifiers\.env names no environment: write taskset"),
        ({"env": {"id": "a", "arg": {}}}, r"verifiers\.env\.arg: .* has id, args"),
        ({"env": {"id": "a", "args": [1]}}, r"verifiers\.env\.args: .* has id, args"),
        ({"validation_env": {"split": "test"}}, r"validation_env\.split is train or eval"),
    ],
)
def test_a_mistake_in_the_section_is_told_before_the_run(make_config, section, told):
    with pytest.raises(ConfigError, match=told):
        registered_workflow("verifiers_agent").check_config(make_config(**section))
