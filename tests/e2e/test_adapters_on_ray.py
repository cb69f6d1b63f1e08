"""Several adapters on backbones verl and trinity: the run of backbone debug, to the token."""

import numpy as np
import pytest

from tests.e2e.test_resume_adapters import TWO_SIDES
from tests.e2e.three_backbones import SETTINGS, episodes, numbers, run_on_each, weights

pytestmark = pytest.mark.ray
ON_RAY = pytest.mark.parametrize("backbone", ["verl", "trinity"])
STEPS = 4
ADAPTERS = ("pro", "con")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, ray_session):
    """The run on each backbone: weights travel in memory on verl, and are broadcast on trinity."""
    steps = f"ajet.trainer_common.total_training_steps={STEPS}"
    asked = [*SETTINGS, *TWO_SIDES, steps, "ajet.trainer_common.optim.lr=1e-3"]
    return run_on_each(tmp_path_factory.mktemp("adapters"), asked)


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
