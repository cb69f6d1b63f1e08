"""Several adapters on backbones verl and trinity: the run of backbone debug, to the token."""

import sys

import numpy as np
import pytest

from ajet.core.checkpoint.checkpoint import WEIGHT_PREFIX, read_weights
from tests.e2e.three_backbones import (
    SETTINGS,
    episodes,
    numbers,
    run_on_each,
    train_verl,
    weights,
)
from tests.e2e.toy_run import TWO_SIDES, ToyRun

pytestmark = pytest.mark.ray
ON_RAY = pytest.mark.parametrize("backbone", ["verl", "trinity"])
STEPS = 4
ADAPTERS = ("pro", "con")
ASKED = [
    *SETTINGS,
    *TWO_SIDES,
    f"ajet.trainer_common.total_training_steps={STEPS}",
    "ajet.trainer_common.optim.lr=1e-3",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, ray_session):
    """The run on each backbone: weights travel in memory on verl, and are broadcast on trinity."""
    return run_on_each(tmp_path_factory.mktemp("adapters"), ASKED)


@ON_RAY
def test_the_episodes_are_the_same_to_the_token(runs, backbone):
    assert len(episodes(runs["debug"])) == STEPS * 12 * 2
    assert episodes(runs[backbone]) == episodes(runs["debug"])


@ON_RAY
def test_each_adapter_learns_what_it_learns_in_one_process(runs, backbone):
    debug, other = (weights(runs[name], STEPS) for name in ("debug", backbone))
    assert debug.keys() == other.keys()
    assert max(np.abs(other[name] - debug[name]).max() for name in debug) < 1e-6
    for adapter in ADAPTERS:
        moved = [t for name, t in debug.items() if name.startswith(adapter) and "lora_B" in name]
        assert moved and all(np.abs(t).max() > 1e-4 for t in moved)  # they began as zero
    names = [f"update/loss/{adapter}" for adapter in ADAPTERS]
    losses = [numbers(runs[name], *names) for name in ("debug", backbone)]
    assert losses[0].shape == (STEPS, 2) and np.abs(losses[1] - losses[0]).max() < 1e-6


def test_two_ranks_of_a_sharded_base_make_the_run_of_one_process(runs, tmp_path, monkeypatch):
    """To the token, in float64: what the ranks gather of the adapters is what the engine gets."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    run = ToyRun(tmp_path)
    monkeypatch.chdir(run.folder)
    train_verl([*ASKED, "ajet.trainer_common.n_trainer_ranks=2"], num_ranks=2)
    assert episodes(run) == episodes(runs["debug"])
    debug, other = weights(runs["debug"], STEPS), weights_of_ranks(run)
    assert debug.keys() == other.keys()
    assert max(np.abs(other[name] - debug[name]).max() for name in debug) < 1e-6


def weights_of_ranks(run):
    """Several ranks write a checkpoint of shards."""
    read = read_weights(run.path / "checkpoints" / f"step_{STEPS:06d}")
    return {name.removeprefix(WEIGHT_PREFIX): t.numpy() for name, t in read.items()}
