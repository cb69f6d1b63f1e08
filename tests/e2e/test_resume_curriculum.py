"""A run whose tasks are taken by their results ends with the same bits, killed or not."""

import random
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from tests.e2e.kills import kill_and_resume
from tests.e2e.toy_run import STEPS, ToyRun, episodes, metrics

# Every third task of Uneven earns all members the same: those rest for two batches, then four.
SETTINGS = (
    "ajet.rollout.user_workflow=workflow.py->Uneven",
    "ajet.data.sampler=adaptive",
    "ajet.data.curriculum.rest=2",
    "ajet.trainer_common.use_kl_loss=false",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(undisturbed, killed in a rollout and at a random moment)."""
    folder = tmp_path_factory.mktemp("resume_curriculum")

    def whole() -> ToyRun:
        run = ToyRun(folder / "whole", *SETTINGS)
        assert run.finish() == 0, run.stderr()
        return run

    def killed() -> ToyRun:
        run = ToyRun(folder / "killed", *SETTINGS)
        assert kill_and_resume(run, ("rollout", "random"), random.Random(1))
        return run

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(whole), pool.submit(killed)]
    return [future.result() for future in futures]


def taken(run: ToyRun) -> list[tuple[int, str]]:
    """The tasks of each step."""
    query = "SELECT DISTINCT step, task_id FROM episodes WHERE mode = 'train' ORDER BY episode_id"
    with sqlite3.connect(run.path / "episodes.sqlite") as connection:
        return connection.execute(query).fetchall()


def test_weights_tasks_and_records_are_the_same(runs):
    whole, killed = runs
    assert killed.final_tensors() == whole.final_tensors()
    assert taken(killed) == taken(whole)
    assert metrics(killed) == metrics(whole) and len(metrics(whole)) == STEPS
    assert episodes(killed) == episodes(whole)


def test_tasks_without_signal_rest(runs):
    lines = metrics(runs[0])
    assert lines[-1]["curriculum/with_signal"] > 0
    rested = [line["curriculum/solved"] + line["curriculum/hopeless"] for line in lines]
    assert rested[-1] > 0
    query = (
        "SELECT task_id, step, count(DISTINCT reward) > 1 FROM episodes WHERE mode = 'train' "
        "GROUP BY task_id, step ORDER BY task_id, step"
    )
    with sqlite3.connect(runs[0].path / "episodes.sqlite") as connection:
        groups = connection.execute(query).fetchall()
    steps_until_again: dict[bool, list[int]] = {True: [], False: []}
    for (task, step, has_signal), (next_task, next_step, _) in pairwise(groups):
        if task == next_task:
            steps_until_again[bool(has_signal)].append(next_step - step)
    assert min(steps_until_again[False]) == 2 and min(steps_until_again[True]) == 1
