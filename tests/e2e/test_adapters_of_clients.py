"""Two sides of a client's episodes learn apart in one server; the client knows nothing of ajet."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.e2e.test_client_episodes import KEY, starting

TUTORIAL = Path(__file__).parents[2] / "tutorial" / "example_many_adapters"


@pytest.mark.parametrize("backbone", ["debug", pytest.param("verl", marks=pytest.mark.ray)])
def test_the_tutorials_client_trains_both_adapters_of_a_server(tmp_path, backbone):
    conf = (TUTORIAL / "two_sides.yaml").read_text().replace("workflow.py->TugOfWar", "null")
    changes = {
        "path: embedded:math": "path: embedded:guess_number",  # of eight replies some have digits
        "total_training_steps: 30": "total_training_steps: 1",
        "val_before_train: true": "val_before_train: false",
        "test_freq: 30": "test_freq: 0",
        "num_repeat: 8": "num_repeat: 4",
        "train_batch_size: 8": "train_batch_size: 2",
        "  task_judge:": "  serve: {port: auto}\n  task_judge:",
    }
    for old, new in changes.items():
        assert old in conf
        conf = conf.replace(old, new)
    (tmp_path / "serve.yaml").write_text(conf)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/tasks.jsonl").write_text((TUTORIAL / "data/tasks.jsonl").read_text())
    with starting(tmp_path) as start:
        process, url = start(backbone)
        command = [sys.executable, "-I", str(TUTORIAL / "client.py"), url]
        environment = {"AJET_SERVE_API_KEY": KEY}
        client = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert client.stdout == "8 episodes\n", client.stderr
        assert process.wait(300) == 0
    [run] = (tmp_path / "launcher_record").iterdir()
    with sqlite3.connect(run / "episodes.sqlite") as record:
        turns = record.execute("SELECT agent_name, notes FROM turns").fetchall()
        rewards = record.execute("SELECT reward, agent_rewards FROM episodes").fetchall()
    assert {(name, json.loads(notes)["adapter"]) for name, notes in turns} == {
        ("high", "high"),
        ("low", "low"),
    }
    assert len(rewards) == 8
    for reward, of_agents in rewards:
        assert json.loads(of_agents) == {"high": reward, "low": -reward}
    tensors = load_file(run / "checkpoints" / "step_000001" / "model.safetensors")
    for side in ("high", "low"):  # the factor that began as zero
        learnt = [t for name, t in tensors.items() if name.startswith(side) and "lora_B" in name]
        assert any(t.any() for t in learnt)
