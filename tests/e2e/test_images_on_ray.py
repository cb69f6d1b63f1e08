"""A model that sees pictures, on backbones debug, verl and trinity in turns."""

import sqlite3

import numpy as np
import pytest

from tests.e2e.three_backbones import SETTINGS, episodes, numbers, run_on_each, weights

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", params=["frozen", "trained"])
def runs(request, tmp_path_factory, ray_session):
    more = [
        "ajet.model.path=embedded:frozen_lake_pixels",
        "ajet.model.images.enabled=true",
        f"ajet.model.images.train_tower={request.param == 'trained'}",
        "ajet.rollout.user_workflow=workflow.py->Sees",
    ]
    return run_on_each(tmp_path_factory.mktemp("images"), [*SETTINGS, *more])


@pytest.mark.parametrize("backbone", ["verl", "trinity"])
def test_the_run_is_the_same(runs, backbone):
    assert episodes(runs[backbone]) == episodes(runs["debug"])
    debug, other = (numbers(runs[name], "update/loss") for name in ("debug", backbone))
    assert np.abs(other - debug).max() < 1e-6
    debug, other = weights(runs["debug"]), weights(runs[backbone])
    assert max(np.abs(other[name] - debug[name]).max() for name in debug) < 1e-6


@pytest.mark.parametrize("backbone", ["debug", "verl", "trinity"])
def test_each_picture_is_stored_once(runs, backbone):
    with sqlite3.connect(runs[backbone].path / "images.sqlite") as database:
        ((number,),) = database.execute("SELECT count(*) FROM images").fetchall()
    assert number == 3
