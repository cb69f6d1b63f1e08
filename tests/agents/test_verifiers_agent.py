"""verifiers_agent: tasks, episodes and rewards of that package's program, whatever that does.

The program is a stand-in that speaks its protocol; tests/environments/verifiers has the real one.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from ajet.core.config import load_config
from ajet.core.errors import ConfigError, DataError
from ajet.core.rollout.request import RolloutRequest
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.core.workflow.registry import registered_workflow
from ajet.environments.verifiers.reader import VerifiersReader
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
PROGRAM = """#!{python}
import json, os, sys, urllib.request

def send(message):
    print(json.dumps(message), flush=True)

def chat(message, text):
    body = {{"model": "m", "messages": [{{"role": "user", "content": text}}]}}
    headers = {{"authorization": "Bearer " + message["api_key"]}}
    headers["content-type"] = "application/json"
    url = message["base_url"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]

for line in sys.stdin:
    message = json.loads(line)
    number, call = message["number"], message["call"]
    if call == "open":
        send({{"number": number, "result": None}})
    elif call == "tasks":
        rows = [{{"idx": i, "name": None, "prompt": f"{{i}}+1", "answer": i + 1}} for i in range(4)]
        send({{"number": number, "result": rows[:message["limit"]]}})
    elif call == "run":
{run}
"""
ADDS = """
        reply = chat(message, message["task"]["prompt"])
        reward = float(reply == str(message["task"]["answer"]))
        send({"number": number, "result": {
            "reward": reward, "metrics": {"right": reward}, "ended_by": "agent_completed",
            "answer": reply, "is_ok": True, "error": None}})
"""
FAILS = {
    "a fault": 'send({"number": number, "fault": "TaskError: no scorer"})',
    "no reward": 'send({"number": number, "result": {"reward": None, "is_ok": False, '
    '"error": "E: x", "metrics": {}, "ended_by": None, "answer": ""}})',
    "no JSON": 'print("hello", flush=True)',
    "no object": 'print("[1]", flush=True)',
    "it ends": "sys.exit(3)",
}


def config_in(folder, run=ADDS, **section):
    program = folder / "python"
    program.write_text(PROGRAM.format(python=sys.executable, run=run))
    program.chmod(0o755)
    section = {"python": str(program), "env": {"taskset": {"id": "adds"}}} | section
    ajet = {
        "model": {"path": "m"},
        "task_reader": {"type": "ajet.environments.verifiers.reader->VerifiersReader"},
        "rollout": {"user_workflow": "verifiers_agent"},
    }
    (folder / "run.yaml").write_text(json.dumps({"ajet": ajet, "verifiers": section}))
    return load_config(folder / "run.yaml")


def tasks_of(config):
    """The tasks; the reader runs in a thread, since it has an event loop of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(VerifiersReader(config).get_training_tasks).result()


async def play(config, tasks, *replies, **limits):
    num_replies = len(replies)
    endpoint = ScriptedEndpoint(
        TOKENIZER, lambda _prompt, id: replies[int(id.rpartition("/")[2]) % num_replies]
    )
    runner = episode_runner(
        registered_workflow("verifiers_agent"),
        endpoint,
        TOKENIZER,
        config=config,
        max_failure_rate=1.0,
        **limits,
    )
    groups = await runner.rollout(RolloutRequest(tasks, step=0, mode="train", num_repeat=1))
    return [group.trajectories[0] for group in groups]


def test_the_last_tasks_are_held_out(tmp_path):
    reader = VerifiersReader(config_in(tmp_path, num_tasks=3, num_validation_tasks=1))
    training, validation = reader.get_training_tasks(), reader.get_validation_tasks()
    assert [task.main_query for task in training] == ["0+1", "1+1"]
    assert [task.main_query for task in validation] == ["2+1"]
    assert training[1].metadata["verifiers"]["answer"] == 2


def test_held_out_tasks_may_be_those_of_another_config_of_the_environment(tmp_path):
    reader = VerifiersReader(config_in(tmp_path, validation_env={"taskset": {"split": "test"}}))
    assert len(reader.get_training_tasks()) == len(reader.get_validation_tasks()) == 4


def test_validation_must_leave_tasks_to_train_on(tmp_path):
    with pytest.raises(DataError, match="none remain to train on"):
        VerifiersReader(config_in(tmp_path, num_validation_tasks=4)).get_training_tasks()


async def test_an_episodes_calls_are_recorded_and_its_reward_is_the_packages(tmp_path):
    config = config_in(tmp_path)
    tasks = tasks_of(config)[:2]
    right, wrong = await play(config, tasks, "1")
    assert (right.reward, wrong.reward) == (1.0, 0.0)
    assert (right.is_success, wrong.is_success) == (True, False)
    assert right.output.log_metrics == {"verifiers/right": 1.0}
    assert right.turns[0].reply["content"] == "1"


@pytest.mark.parametrize("run", FAILS.values(), ids=FAILS)
async def test_whatever_the_program_does_is_an_env_error_of_one_line(tmp_path, run):
    config = config_in(tmp_path, run=f"        {run}")
    [failed] = await play(config, tasks_of(config)[:1], "1")
    assert failed.status is EpisodeStatus.ENV_ERROR
    assert "\n" not in failed.error
    assert "verifiers: " in failed.error


def test_a_missing_interpreter_is_an_error(tmp_path):
    reader = VerifiersReader(config_in(tmp_path, python=str(tmp_path / "none")))
    with pytest.raises(DataError, match="verifiers: its program ended"):
        reader.get_training_tasks()


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"env": {"taskset": {}}}, r"verifiers\.env\.taskset\.id"),
        ({"num_task": 3}, r"verifiers\.num_task: "),
    ],
)
def test_mistakes_in_the_section_are_told_before_the_run(tmp_path, section, told):
    with pytest.raises(ConfigError, match=told):
        registered_workflow("verifiers_agent").check_config(config_in(tmp_path, **section))
