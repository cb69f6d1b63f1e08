"""benchmarks/chaos.py in short: a run with agents that misbehave is killed twice and ends with the
same bits, as does one whose environment service was out of order; and what the benchmark compares
is told apart where it is not the same.

Not covered: the other kinds of runs and those on Ray, which the benchmark itself has. A slow disk
is in test_faulty_disk.py, a buffer that is locked in core/buffer/test_buffer.py.
"""

import random
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from benchmarks import chaos
from tests.e2e.toy_run import STEPS, episodes

MATH_TOOLS = chaos.ARMS["math_tools"]
ARM = replace(MATH_TOOLS, overrides=(*MATH_TOOLS.overrides, "ajet.rollout.episode_timeout_s=8"))
"""Each run waits so long for the episode that hangs."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("chaos")


@pytest.fixture(scope="module")
def found(folder):
    return list(chaos.rounds(folder, ARM, 2, random.Random("short")))


@pytest.fixture
def runs(found, folder, tmp_path):
    """The run that was left alone, and a copy of it."""
    whole = chaos.ChaosRun(folder / "whole", ARM, chaos.Beside())
    copy = chaos.ChaosRun(tmp_path / "copy", ARM, chaos.Beside())
    # The run is over and its log is in the database: a reader that closes may delete these files.
    shutil.copytree(whole.path, copy.path, ignore=shutil.ignore_patterns("*-wal", "*-shm"))
    assert not chaos.differences(copy, whole, is_exact=True)
    return whole, copy


def test_a_run_with_agents_that_misbehave_is_killed_and_ends_with_the_same_bits(found):
    assert found[-1]["kills"] >= 2
    assert found[-1]["not_as_promised"] == {}


def test_the_agents_of_the_chaos_run_misbehave(runs):
    # Closed here: its files would vanish while another test copies the folder.
    with closing(sqlite3.connect(runs[0].path / "episodes.sqlite")) as connection:
        statuses = dict(connection.execute("SELECT status, count(*) FROM episodes GROUP BY status"))
    assert statuses["timeout"] == 1 and statuses["agent_error"] and statuses["env_error"]


def test_an_episode_that_was_lost_is_found(runs):
    whole, copy = runs
    with sqlite3.connect(copy.path / "episodes.sqlite") as connection:
        connection.execute("DELETE FROM episodes WHERE episode_id = '000002-train-0001-03'")
    assert chaos.differences(copy, whole, is_exact=True) == ["lost: 000002-train-0001-03"]


def test_an_episode_that_earned_something_else_is_found(runs):
    whole, copy = runs
    with sqlite3.connect(copy.path / "episodes.sqlite") as connection:
        connection.execute(
            "UPDATE episodes SET reward = reward + 1 WHERE episode_id = '000002-train-0001-03'"
        )
    assert chaos.differences(copy, whole, is_exact=True) == ["other: 000002-train-0001-03"]


def test_a_bit_of_the_weights_is_found(runs):
    whole, copy = runs
    file = copy.last_checkpoint() / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert chaos.differences(copy, whole, is_exact=True) == ["other bits: model.safetensors"]


def test_a_step_that_was_logged_twice_and_a_checkpoint_left_unfinished_are_found(runs):
    whole, copy = runs
    file = copy.path / "logs" / "metrics.jsonl"
    file.write_text(file.read_text() + file.read_text().splitlines(keepends=True)[-1])
    (copy.path / "checkpoints" / ".writing_step_000006").mkdir()
    steps = [*range(1, STEPS + 1), STEPS]
    assert chaos.differences(copy, whole, is_exact=True) == [
        f"steps in the metrics: {steps}",
        "other metrics",
        "unfinished: .writing_step_000006",
    ]


def test_a_run_whose_environment_service_is_out_of_order_goes_on_to_the_same_bits(tmp_path):
    arm, one, two = chaos.ARMS["env_service"], *map(steps, (1, 2))
    with chaos.beside(arm, tmp_path) as service:
        whole, run = (chaos.ChaosRun(tmp_path / name, arm, service) for name in ("whole", "run"))
        assert whole.finish(two) == 0, whole.stderr()
        assert run.finish(one) == 0, run.stderr()
        with service.out_of_order("service babbles"):
            assert run.finish(two) == 1
        (error,) = run.errors()
        assert "of 16 episodes failed (" in error and "env_error), more than" in error
        assert run.finish(two) == 0, run.stderr()
    assert run.final_tensors(2) == whole.final_tensors(2)
    assert episodes(run) == episodes(whole)


def steps(number):
    return f"ajet.trainer_common.total_training_steps={number}"
