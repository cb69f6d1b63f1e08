"""A training whose episodes clients run: through a kill of the server and of a client, audited."""

import json
import os
import signal
import sqlite3
import threading
from contextlib import contextmanager

import openai
import pytest

from ajet.client import EpisodeClient, RunOver, ServerUnreachable
from tests.e2e.serving import servers
from tests.warm_start import warm_start

CONFIG = """
ajet:
  experiment_name: served
  model: {path: "embedded:math", device: cpu}
  task_reader:
    type: jsonl_dataset_file
    jsonl_dataset_file: {training: {file_path: tasks.jsonl}}
  data: {train_batch_size: 2, max_prompt_length: 256, max_response_length: 256}
  rollout:
    num_repeat: 4
    temperature: 1.0
    max_response_length_in_one_turn: 12
    max_model_len: 512
    failure_policy: retry
  task_judge: {judge_protocol: null}
  serve: {port: auto, heartbeat_s: 6.0}
  trainer_common:
    {total_training_steps: 2, save_freq: 1, test_freq: 0, val_before_train: false, torch_threads: 1}
"""
KEY = "sk-test"
WITHIN_S = 300


def solve(episode):
    """A client's agent: two calls, with a tool's result in between."""
    agent = openai.OpenAI(base_url=episode.base_url, api_key=episode.api_key)
    messages = [{"role": "user", "content": episode.task["main_query"]}]
    for _ in range(2):
        reply = agent.chat.completions.create(model="any", messages=messages).choices[0].message
        messages.append(reply.model_dump(exclude_none=True))
        messages.append({"role": "user", "content": "Are you sure?"})
    return float(len(reply.content or "") % 3)


@pytest.fixture
def folder(tmp_path):
    training, held_out = (
        "{training: {file_path: tasks.jsonl}",
        ", validation: {file_path: held_out.jsonl}",
    )
    (tmp_path / "serve.yaml").write_text(CONFIG.replace(training, training + held_out))
    rows = [{"question": f"What is {n} plus 2?", "answer": str(n + 2)} for n in range(4)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "held_out.jsonl").write_text(json.dumps({"question": "7 + 2?", "answer": "9"}))
    return tmp_path


@contextmanager
def starting(folder):
    """A function that starts the server on a backbone and returns its process and its address."""
    with servers(folder, KEY, r"episodes at (http://\S+), the key") as started:
        yield lambda backbone: started("serve", backbone, "--conf", "serve.yaml")


@pytest.fixture
def start(folder):
    with starting(folder) as started:
        yield started


@pytest.mark.parametrize(
    "backbone",
    [
        "debug",
        pytest.param("verl", marks=pytest.mark.ray),
        pytest.param("trinity", marks=pytest.mark.ray),
    ],
)
def test_what_was_acknowledged_before_a_kill_is_trained_once_and_never_asked_for_again(
    folder, start, backbone
):
    process, url = start(backbone)
    acknowledged = {}

    def play(client, number):
        for _ in range(number):
            with client.begin() as episode:
                outcome = episode.end(solve(episode))
            assert outcome.status == "ok"
            acknowledged[episode.data.episode_id] = outcome.reward

    with EpisodeClient(url, KEY) as client:
        play(client, 8 + 3)  # the first step, and a part of the second
        client.begin()  # its client dies
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)

    process, url = start(backbone)
    before = dict(acknowledged)
    with EpisodeClient(url, KEY) as client:
        abandoned = client.begin()  # and so does this one: its episode is offered again
        play(client, 16 - 11)
    assert process.wait(WITHIN_S) == 0
    suggested = (folder / "serve.log").read_text().partition("Result")[2]
    assert " view " in suggested
    assert " eval " not in suggested, "it would not play the client's agent"
    assert abandoned.data.episode_id not in acknowledged
    assert f"{abandoned.data.episode_id}-r1" in acknowledged
    assert set(before) <= set(acknowledged) and len(acknowledged) == 16

    record = folder / "launcher_record/served/episodes.sqlite"
    with sqlite3.connect(record) as connection:
        query = "SELECT episode_id, reward FROM episodes WHERE status = 'ok'"
        recorded = dict(connection.execute(query))
    assert recorded == acknowledged
    log = (folder / "audit.log").open("w+")
    audit = warm_start(
        ["-m", "ajet.cli.launcher", "audit", "launcher_record/served"],
        cwd=folder,
        env={"PATH": os.environ["PATH"]},
        stdout=log.fileno(),
        stderr=log.fileno(),
    )
    assert audit.wait(120) == 0, (folder / "audit.log").read_text()


@pytest.mark.ray
def test_a_paused_run_on_ray_hands_out_nothing_and_ctrl_c_ends_it_after_its_step(folder, start):
    process, url = start("verl")
    with EpisodeClient(url, KEY, patience_s=5) as client:
        first = client.begin()
        assert client.pause()["state"] == "paused"
        late = []
        waiting = threading.Thread(target=lambda: late.append(client.begin()))
        waiting.start()
        os.kill(process.pid, signal.SIGINT)
        assert first.end(solve(first)).status == "ok"
        assert not late and client.status()["state"] == "paused"
        client.resume()
        waiting.join(WITHIN_S)
        late[0].end(solve(late[0]))
        for _ in range(6):
            last = client.begin()
            last.end(solve(last))
        assert last.outcome(wait_s=WITHIN_S).trained_step == 1
        with pytest.raises((RunOver, ServerUnreachable)):
            client.begin()
    assert process.wait(WITHIN_S) == 130
    assert "stopped after step 1 of 2" in (folder / "serve.log").read_text()
