"""One YAML and one seed on backbones debug, verl and trinity in turns: the same run.

In float64: engines batch otherwise than the debug backbone's waves, and in float32 the last bits of
log-probabilities differ by it. AdamW makes whole steps of a gradient that is rounding alone, and
some day a token falls to the other side.
"""

import numpy as np
import pytest

from tests.e2e.three_backbones import (
    SETTINGS,
    STEPS,
    episodes,
    numbers,
    run_on_each,
    trained_tokens,
    weights,
)

pytestmark = pytest.mark.ray
ON_RAY = pytest.mark.parametrize("backbone", ["verl", "trinity"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory, ray_session):
    """The three run folders."""
    return run_on_each(tmp_path_factory.mktemp("agree"), SETTINGS)


@ON_RAY
def test_the_episodes_are_the_same_to_the_token(runs, backbone):
    assert len(episodes(runs["debug"])) == STEPS * 12 * 2
    assert episodes(runs[backbone]) == episodes(runs["debug"])


@ON_RAY
def test_losses_rewards_and_the_kl_are_the_same_within_a_millionth(runs, backbone):
    names = ("update/loss", "reward/mean", "update/kl")
    debug, other = (numbers(runs[name], *names) for name in ("debug", backbone))
    assert debug.shape == (STEPS, 3)
    assert np.abs(other - debug).max() < 1e-6


@ON_RAY
def test_the_final_weights_are_the_same_within_a_millionth(runs, backbone):
    debug, other = weights(runs["debug"]), weights(runs[backbone])
    assert debug.keys() == other.keys()
    assert max(np.abs(other[name] - debug[name]).max() for name in debug) < 1e-6
    assert (numbers(runs[backbone], "update/grad_norm") > 1.0).all()  # they moved


@ON_RAY
def test_what_the_update_computed_for_each_token_is_recorded_alike(runs, backbone):
    (debug, cuts), (other, other_cuts) = (trained_tokens(runs[n]) for n in ("debug", backbone))
    assert debug.shape[1] > STEPS * 12 and np.isfinite(debug).all()
    np.testing.assert_allclose(other, debug, atol=1e-5)
    assert other_cuts == cuts
