"""Several adapters on backbone verl: the run of backbone debug, to the token."""

import sys

import numpy as np
import pytest

from tests.e2e.test_resume_adapters import TWO_SIDES
from tests.e2e.three_backbones import SETTINGS, episodes, numbers, train_debug, train_verl, weights
from tests.e2e.toy_run import ToyRun

pytestmark = pytest.mark.ray
STEPS = 4
ADAPTERS = ("pro", "con")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, ray_session):
    """(on backbone debug, on verl with two engines)."""
    asked = [*SETTINGS, *TWO_SIDES, f"ajet.trainer_common.total_training_steps={STEPS}"]
    asked.append("ajet.trainer_common.optim.lr=1e-3")
    folder = tmp_path_factory.mktemp("adapters")
    debug, verl = ToyRun(folder / "debug"), ToyRun(folder / "verl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        patch.chdir(debug.folder)
        train_debug(asked)
        patch.chdir(verl.folder)
        train_verl(asked, num_engines=2)
    return debug, verl


def test_the_episodes_are_the_same_to_the_token(runs):
    debug, verl = runs
    assert len(episodes(debug)) == STEPS * 12 * 2
    assert episodes(verl) == episodes(debug)


def test_each_adapter_learns_what_it_learns_in_one_process(runs):
    debug, verl = (weights(run, STEPS) for run in runs)
    assert debug.keys() == verl.keys()
    assert max(np.abs(verl[name] - debug[name]).max() for name in debug) < 1e-6
    for adapter in ADAPTERS:
        moved = [t for name, t in debug.items() if name.startswith(adapter) and "lora_B" in name]
        assert moved and all(np.abs(t).max() > 1e-4 for t in moved)  # they began as zero
    names = [f"update/loss/{adapter}" for adapter in ADAPTERS]
    losses = [numbers(run, *names) for run in runs]
    assert losses[0].shape == (STEPS, 2) and np.abs(losses[1] - losses[0]).max() < 1e-6
