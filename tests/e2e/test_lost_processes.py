"""SIGKILL to each kind of process of a run on Ray, at a seeded moment: the run ends as if nothing
had happened, says what did, and loses no episode that had finished.

In float64: engines batch otherwise after a loss, and roundings must not reach a token.
"""

import json
import os
import random
import signal
import sqlite3
import time

import numpy as np
import pytest

from tests.e2e.three_backbones import episodes, weights
from tests.e2e.toy_run import STEPS, ToyRun, VerlRun, ended, wait_until
from tests.processes import below, command, until_gone

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

SETTINGS = (
    "ajet.trainer_common.optim.lr=1e-6",
    "ajet.model.dtype=float64",
    "ajet.rollout.agent.num_workers=2",
    "ajet.rollout.n_vllm_engine=2",
    "ajet.trainer_common.save_in_background=true",
)
WITHIN_S = 600
TITLES = {
    "worker": "ray::RolloutWorker",
    "engine": "ray::EngineProcess",
    "router": "ray::RouterProcess",
    "trainer": "ray::TrainerRank",
}
SAYS = {
    "worker": "is lost because its process ended: another takes its place",
    "engine": "an inference replica gets no more requests: engine ",
    "router": "the router of the engines is lost: its process ended: the run continues",
    "trainer": "trainer rank 0 is lost: its process ended: the run continues from its last",
}


def processes(driver: int, title: str) -> list[int]:
    """Those below the driver that Ray has named so."""
    return sorted(pid for pid in below(driver) if title in command(pid))


def kill_once(run: ToyRun, what: str, step: int, rng: random.Random) -> None:
    """The run to its end, with one process killed while episodes of `step` are on their way."""
    with ended(run.start()) as process:
        assert wait_until(lambda: run.episodes("begin", step) > 0, process, WITHIN_S, 0.05), (
            run.stderr()
        )
        time.sleep(rng.random())
        os.kill(rng.choice(processes(process.pid, TITLES[what])), signal.SIGKILL)
        assert process.wait(WITHIN_S) == 0, run.stderr()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    run = VerlRun(tmp_path_factory.mktemp("whole"), *SETTINGS)
    assert run.finish(timeout=WITHIN_S) == 0, run.stderr()
    return run


def assert_the_same(run, whole):
    assert episodes(run) == episodes(whole)
    lines = (run.path / "logs/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, STEPS + 1))
    mine, theirs = weights(run, STEPS), weights(whole, STEPS)
    assert max(np.abs(mine[name] - theirs[name]).max() for name in theirs) < 1e-6


@pytest.mark.parametrize("what", list(TITLES))
def test_a_run_that_loses_a_process_is_the_run_that_lost_none(what, undisturbed, tmp_path):
    run = VerlRun(tmp_path, *SETTINGS)
    kill_once(run, what, 3, random.Random(what))
    assert SAYS[what] in (run.path / "logs/run.log").read_text()
    assert_the_same(run, undisturbed)


def test_a_driver_that_is_killed_leaves_nobody_and_no_finished_episode_is_lost(
    undisturbed, tmp_path
):
    run = VerlRun(tmp_path, *SETTINGS, "ajet.rollout.user_workflow=workflow.py->HalfAwaits")
    (tmp_path / "awaited").write_text("released")
    with ended(run.start()) as process:
        assert wait_until(lambda: run.episodes("end", 3) == 8, process, WITHIN_S, 0.05), (
            run.stderr()
        )
        time.sleep(2)  # the last of them is on its way from its worker
        left = [pid for title in TITLES.values() for pid in processes(process.pid, title)]
        assert len(left) == 2 + 2 + 1 + 1
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert not until_gone(left)
    with sqlite3.connect(run.path / "finished.sqlite") as journal:
        [calls] = journal.execute("SELECT COUNT(*) FROM answered WHERE group_id LIKE '000003%'")
    assert calls == (8,)  # the first call of each that waits in its middle
    run.forget_told()
    (tmp_path / "released").touch()
    assert run.finish(timeout=WITHIN_S) == 0, run.stderr()
    assert run.episodes("begin", 3) == 8
    said = (run.path / "logs/run.log").read_text()
    assert "8 unfinished episodes continue after 8 stored calls" in said
    assert_the_same(run, undisturbed)
