"""Killed and resumed, a run with all that has state of its own ends with the same bits.

A critic, an adaptive KL in the reward, rounds of dynamic sampling, groups that stop early.
"""

import random
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.kills import kill_and_resume
from tests.e2e.toy_run import STEPS, UNEVEN_PPO, ToyRun, episodes, metrics


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(undisturbed, killed in a rollout, in an update and at a random moment)."""
    folder = tmp_path_factory.mktemp("resume_algorithms")

    def whole() -> ToyRun:
        run = ToyRun(folder / "whole", *UNEVEN_PPO)
        assert run.finish() == 0, run.stderr()
        return run

    def killed() -> ToyRun:
        run = ToyRun(folder / "killed", *UNEVEN_PPO)
        assert kill_and_resume(run, ("rollout", "update", "random"), random.Random(0))
        return run

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(whole), pool.submit(killed)]
    return [future.result() for future in futures]


def test_all_weights_and_optimizers_are_bit_identical(runs):
    whole, killed = runs
    assert killed.final_tensors() == whole.final_tensors()


def test_the_records_are_the_same_also_of_episodes_that_were_stopped_or_set_aside(runs):
    whole, killed = runs
    assert metrics(killed) == metrics(whole)
    assert episodes(killed) == episodes(whole)
    assert len(metrics(whole)) == STEPS
    with sqlite3.connect(whole.path / "episodes.sqlite") as connection:
        query = "SELECT error, count(*) FROM episodes WHERE status = 'aborted' GROUP BY error"
        reasons = dict(connection.execute(query).fetchall())
    assert reasons.pop("the group had enough members (ajet.rollout.group_size_redundancy)")
    assert all("dynamic_sampling" in reason for reason in reasons) and reasons


def test_the_coefficient_moves_the_critic_learns_alone_at_first_and_batches_are_filled(runs):
    lines = metrics(runs[0])
    coefficients = [line["kl_in_reward/coef"] for line in lines]
    assert len(set(coefficients)) == STEPS
    assert "update/loss" not in lines[0] and "update/loss" in lines[1]
    assert all(line["critic/grad_norm"] > 0 for line in lines)
    assert all(line["groups/with_signal"] == 4 for line in lines)
    assert any(line["groups/total"] > 4 for line in lines)
    stopped = [(line["selection/redundancy/left_out"], line["groups/total"]) for line in lines]
    assert all(left_out == 2 * groups for left_out, groups in stopped)
