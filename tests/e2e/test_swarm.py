"""`ajet serve --swarm`: clients configure a server and feed it by shares, also through a kill; one
workflow trains two models."""

import os
import signal
import sqlite3
import threading
import time

import httpx
import openai
import pytest
import yaml
from typer.testing import CliRunner

from ajet import Task, WorkflowOutput
from ajet.cli.launcher import app
from ajet.client import EpisodeClient
from ajet.compat.agentjet.copilot.job import AgentJetJob
from ajet.compat.agentjet.tuner_lib.experimental.swarm_client import (
    SwarmClient,
    run_episodes_until_all_complete,
)
from tests.e2e.serving import servers

KEY = "sk-test"
WITHIN_S = 300
CONFIG = """
ajet:
  experiment_name: mixture
  model: {path: "embedded:math", device: cpu}
  task_reader: {type: random_dummy}
  data: {train_batch_size: 4, max_prompt_length: 256, max_response_length: 256}
  rollout:
    {num_repeat: 2, temperature: 1.0, max_response_length_in_one_turn: 12, max_model_len: 512}
  serve:
    tasks: client
    shares: {start: {math: 3, code: 1}, end: {math: 1, code: 3}, steps: 2}
  trainer_common: {total_training_steps: 3, save_freq: 1, test_freq: 0, torch_threads: 1}
"""


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("AJET_SERVE_API_KEY", KEY)


@pytest.fixture
def start(tmp_path):
    """A function that starts a server and returns its process and address."""
    with servers(tmp_path, KEY, r"waiting for clients at (http://\S+), the key") as started:
        yield lambda name, backbone, *options: started(
            name, backbone, "--swarm", "ajet.serve.port=auto", *options
        )


def ask(episode_url, episode_key, question):
    agent = openai.OpenAI(base_url=episode_url, api_key=episode_key)
    messages = [{"role": "user", "content": question}]
    reply = agent.chat.completions.create(model="any", messages=messages).choices[0].message
    return reply.content or ""


def feed(url, name, numbers, trained):
    """Runs two episodes of each task, and notes its client by the step that trains it."""
    with EpisodeClient(url, KEY, client=name) as client:
        for number in numbers:
            task = {"task_id": f"{name}-{number}", "main_query": f"{number} + 1?"}
            for member in range(2):
                episode = client.begin(task=task)
                ask(episode.base_url, episode.api_key, task["main_query"])
                episode.end(float(member))
            trained.setdefault(episode.data.step, {})[episode.data.group_id] = name


def until(client, *states):
    while (status := client.status())["state"] not in states:
        assert not status["error"], status
        time.sleep(0.1)
    return status


@pytest.mark.parametrize(
    "backbone",
    [
        "debug",
        pytest.param("verl", marks=pytest.mark.ray),
        pytest.param("trinity", marks=pytest.mark.ray),
    ],
)
def test_a_batch_has_its_shares_though_the_server_was_killed_in_it(start, tmp_path, backbone):
    process, url = start("server", backbone)
    trained = {}
    with EpisodeClient(url, KEY) as client:
        assert client.status()["state"] == "offline"
        client.start(CONFIG)
        feeding = threading.Thread(target=feed, args=(url, "math", range(3), trained))
        feeding.start()
        feed(url, "code", range(1), trained)  # step 1: three and one
        feeding.join(WITHIN_S)
        feed(url, "math", range(3, 4), trained)  # and a part of step 2
        shown = CliRunner().invoke(app, ["watch", url, "--once"])
        assert "code" in shown.output and "8 ok" in shown.output, shown.output
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)

    process, url = start("server", backbone)
    with EpisodeClient(url, KEY) as client:
        client.start(yaml.safe_load(CONFIG))
        feeding = threading.Thread(target=feed, args=(url, "code", range(2, 7), trained))
        feeding.start()  # two groups of step 2 and three of step 3
        feed(url, "math", range(4, 6), trained)
        feeding.join(WITHIN_S)
        until(client, "offline")
        assert [sorted(trained[step].values()) for step in (1, 2, 3)] == [
            ["code", "math", "math", "math"],
            ["code", "code", "math", "math"],
            ["code", "code", "code", "math"],
        ]
        again = client.start(CONFIG)  # the run is complete: it ends with a reason
        assert again["state"] in ("starting", "stopping", "offline")
        while (status := client.status())["state"] != "offline":
            time.sleep(0.1)
        assert "3" in status["error"], status
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(WITHIN_S) == 130
    audit = CliRunner().invoke(app, ["audit", str(tmp_path / "launcher_record/mixture")])
    assert audit.exit_code == 0, audit.output


def test_one_workflow_trains_two_models_of_different_sizes(start, tmp_path):
    models = {"large": "embedded:math", "small": "embedded:frozen_lake"}
    jobs = []
    for name, model in models.items():
        _, url = start(name, "debug", "ajet.trainer_common.torch_threads=1")
        job = AgentJetJob(
            experiment_name=name, algorithm="grpo", model=model, batch_size=2, num_repeat=2
        )
        job.config.ajet.rollout.max_response_length_in_one_turn = 8
        job.config.ajet.trainer_common.total_training_steps = 2
        jobs.append((SwarmClient(url), job))
    SwarmClient.async_and_start_multi_engine(jobs)
    rewards = {name: [] for name in models}

    def play(task):
        """A workflow in which the small model answers what the large one has said."""
        begun = [client.begin_episode() for client, _ in jobs]
        text = task.main_query
        for (client, job), (episode_uuid, api) in zip(jobs, begun, strict=True):
            text = ask(api.base_url, api.api_key, text)[:20] or "nothing"
            name = job.config.ajet.experiment_name
            reward = float(len(text) % 3) + (10.0 if name == "small" else 0.0)
            rewards[name].append(reward)
            client.end_episode(task, episode_uuid, WorkflowOutput(reward=reward))

    tasks = [Task(f"t{n // 2}", f"{n // 2} + 1?") for n in range(8)]
    run_episodes_until_all_complete(tasks, play, max_workers=4)
    sizes = []
    for client, job in jobs:
        client._wait_until_status_change_to("ENGINE.OFFLINE", timeout=WITHIN_S)
        assert client.get_global_step() == 2
        name = job.config.ajet.experiment_name
        folder = tmp_path / "launcher_record" / name
        with sqlite3.connect(folder / "episodes.sqlite") as connection:
            recorded = connection.execute("SELECT reward FROM episodes WHERE status = 'ok'")
            assert sorted(reward for (reward,) in recorded) == sorted(rewards[name])
        sizes.append((folder / "checkpoints/step_000002/model.safetensors").stat().st_size)
    assert len(rewards["large"]) == 8 and sizes[0] > 2 * sizes[1]


def test_a_config_that_cannot_run_is_answered_in_one_line(start):
    _, url = start("server", "debug")
    post = httpx.post(
        f"{url}/ajet/v1/run",
        json={"config": "ajet: {model: {path: /nowhere}}"},
        headers={"authorization": f"Bearer {KEY}"},
        timeout=60,
    )
    assert post.status_code == 400
    message = post.json()["error"]["message"]
    assert "/nowhere" in message and "\n" not in message
