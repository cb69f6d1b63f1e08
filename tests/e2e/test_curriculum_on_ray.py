"""Tasks that are taken by their results are the same ones on debug, verl and trinity in turns."""

import sqlite3
import sys

import pytest

from tests.e2e.three_backbones import (
    SETTINGS,
    episodes,
    numbers,
    run_on_each,
    train_trinity,
)
from tests.e2e.toy_run import ToyRun

pytestmark = pytest.mark.ray
STEPS = 5
ADAPTIVE = [
    *SETTINGS[1:],
    f"ajet.trainer_common.total_training_steps={STEPS}",
    "ajet.rollout.user_workflow=workflow.py->Uneven",  # every third task has no signal
    "ajet.data.sampler=adaptive",
    "ajet.data.curriculum.rest=1",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, ray_session):
    """The three run folders."""
    return run_on_each(tmp_path_factory.mktemp("curriculum"), ADAPTIVE)


def tasks_of(run):
    query = "SELECT DISTINCT step, task_id FROM episodes WHERE mode = 'train' ORDER BY episode_id"
    with sqlite3.connect(run.path / "episodes.sqlite") as connection:
        return connection.execute(query).fetchall()


@pytest.mark.parametrize("backbone", ["verl", "trinity"])
def test_tasks_episodes_and_what_is_known_of_the_tasks_are_the_same(runs, backbone):
    assert len(tasks_of(runs["debug"])) == STEPS * 3
    assert tasks_of(runs[backbone]) == tasks_of(runs["debug"])
    assert episodes(runs[backbone]) == episodes(runs["debug"])
    names = ("curriculum/with_signal", "curriculum/solved", "curriculum/hopeless")
    assert numbers(runs[backbone], *names).tolist() == numbers(runs["debug"], *names).tolist()
    assert numbers(runs["debug"], "curriculum/with_signal")[-1] > 0


def test_with_staleness_results_count_as_they_come_also_after_a_resume(
    tmp_path, monkeypatch, ray_session
):
    monkeypatch.setattr(sys, "path", list(sys.path))
    run = ToyRun(tmp_path / "stale")
    monkeypatch.chdir(run.folder)
    for steps in (3, 6):
        given = [each for each in ADAPTIVE if "total_training_steps" not in each]
        total = f"ajet.trainer_common.total_training_steps={steps}"
        train_trinity([*given, total, "trinity.max_staleness=2"])
    known = numbers(run, "curriculum/with_signal", "curriculum/solved", "curriculum/hopeless")
    assert known.shape == (6, 3)
    assert (known.sum(axis=1) > 0).all() and known[-1].sum() >= known[2].sum()
