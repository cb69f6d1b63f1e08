"""A model that sees pictures, on backbones debug, verl and trinity in turns."""

import sqlite3
import sys

import numpy as np
import pytest

from ajet.core.checkpoint.checkpoint import WEIGHT_PREFIX, read_weights
from tests.e2e.three_backbones import (
    SETTINGS,
    STEPS,
    episodes,
    numbers,
    run_on_each,
    train_verl,
    weights,
)
from tests.e2e.toy_run import SEES, ToyRun

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", params=["frozen", "trained"])
def runs(request, tmp_path_factory, ray_session):
    tower = f"ajet.model.images.train_tower={request.param == 'trained'}"
    return run_on_each(tmp_path_factory.mktemp("images"), [*SETTINGS, *SEES, tower])


@pytest.mark.parametrize("backbone", ["verl", "trinity"])
def test_the_run_is_the_same(runs, backbone):
    assert episodes(runs[backbone]) == episodes(runs["debug"])
    debug, other = (numbers(runs[name], "update/loss") for name in ("debug", backbone))
    assert np.abs(other - debug).max() < 1e-6
    debug, other = weights(runs["debug"]), weights(runs[backbone])
    assert max(np.abs(other[name] - debug[name]).max() for name in debug) < 1e-6


def test_two_ranks_make_the_run_of_one_process(runs, tmp_path, monkeypatch):
    """Each has a whole tower, whose gradients are summed."""
    if not any("vision_tower" in name for name in weights(runs["debug"])):
        pytest.skip("the tower is frozen")
    monkeypatch.setattr(sys, "path", list(sys.path))
    run = ToyRun(tmp_path)
    monkeypatch.chdir(run.folder)
    train_verl([*SETTINGS, *SEES, "ajet.trainer_common.n_trainer_ranks=2"], num_ranks=2)
    assert episodes(run) == episodes(runs["debug"])
    read = read_weights(run.path / "checkpoints" / f"step_{STEPS:06d}")
    other = {name.removeprefix(WEIGHT_PREFIX): t.numpy() for name, t in read.items()}
    debug = weights(runs["debug"])
    assert debug.keys() == other.keys()
    assert max(np.abs(other[name] - debug[name]).max() for name in debug) < 1e-6


@pytest.mark.parametrize("backbone", ["debug", "verl", "trinity"])
def test_each_picture_is_stored_once(runs, backbone):
    with sqlite3.connect(runs[backbone].path / "images.sqlite") as database:
        ((number,),) = database.execute("SELECT count(*) FROM images").fetchall()
    assert number == 3
