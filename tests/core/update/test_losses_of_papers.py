"""Formulas written out with numpy, where neither verl nor trl has the loss or by hand."""

import math

import numpy as np
import pytest
import torch
from loss_fixtures import random_batch

from ajet.core.losses import LOSSES
from ajet.core.losses.mini_batch_tokens import MiniBatchTokens
from ajet.core.losses.token_loss import LossInputs
from ajet.core.update.settings import UpdateSettings


@pytest.mark.parametrize("seed", range(5))
def test_topr_is_the_papers_gradient(seed):
    """Of a trajectory with R >= 0: R grad log pi; with R < 0: min(pi / mu, 1) R grad log pi."""
    batch = random_batch(seed, per_row_advantages=True)
    settings = UpdateSettings(policy_loss="topr", loss_agg_mode="seq-mean-token-sum")
    loss, gradient, found = batch.loss(settings)
    logprobs, old, rewards, mask = (
        t.numpy() for t in (batch.logprobs_BT, batch.old_BT, batch.advantages_BT, batch.mask_BT)
    )
    ratio_B = np.exp(((logprobs - old) * mask).sum(1))
    weight_B = np.where(rewards[:, 0] >= 0, 1.0, np.minimum(ratio_B, 1.0))
    expected = -(weight_B[:, None] * rewards * mask) / len(mask)
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=0, atol=1e-6)
    assert loss.item() == pytest.approx((expected * logprobs).sum(), abs=1e-6)
    tapered_B = (rewards[:, 0] < 0) & (ratio_B > 1)
    share = (tapered_B[:, None] * mask).sum() / mask.sum()
    assert found.cuts["high"].double().mean().item() == pytest.approx(share)


def loss_of(name, logprobs, advantages, numbers=None, **settings):
    """With an old log-probability of 0, so that a ratio is exp(logprob). `numbers` are those of the
    mini-batch, one for all tokens."""
    tensors = [torch.tensor(numbers) for numbers in (logprobs, advantages)]
    of_tokens = {key: torch.full((len(logprobs),), n) for key, n in (numbers or {}).items()}
    logprobs_M = tensors[0].requires_grad_()
    tokens = LossInputs(logprobs_M, torch.zeros(len(logprobs)), tensors[1], of_tokens)
    found = LOSSES[name].of_tokens(tokens, UpdateSettings(policy_loss=name, **settings))
    gradient = torch.autograd.grad(found.loss_M.sum(), logprobs_M)[0]
    return found, gradient.tolist()


def test_the_ratio_of_gspo_is_the_geometric_mean_of_the_episodes_tokens():
    # ratios 2 and 1/8: sqrt(1/4) = 1/2; a token above its own clip still has a gradient
    found, gradient = loss_of(
        "gspo", [math.log(2), math.log(1 / 8)], [1.0, 1.0], {"log_ratio": math.log(1 / 2)}
    )
    assert found.ratio_M.tolist() == pytest.approx([0.5, 0.5])
    assert gradient == pytest.approx([-0.5, -0.5])
    cut, no_gradient = loss_of(
        "gspo", [math.log(2)], [1.0], {"log_ratio": math.log(2)}, clip_high=0.5
    )
    assert cut.loss_M.tolist() == pytest.approx([-1.5]) and no_gradient == [0.0]
    assert {name: where.tolist() for name, where in cut.cuts.items()} == {
        "low": [False],
        "high": [True],
    }


def test_cispo_bounds_the_weight_and_keeps_every_gradient():
    _, gradient = loss_of(
        "cispo", [math.log(9), math.log(0.1)], [2.0, -1.0], clip_low=0.5, clip_high=1.0
    )
    assert gradient == pytest.approx([-2 * 2.0, 0.5])


def test_gmpo_bounds_what_it_pushes_down_and_what_it_raises_apart():
    log_ratios, advantages = [-0.3, 0.3, -0.6], [-1.0, 1.0, -1.0]
    bounds = {"clip_low": 0.5, "clip_high": 0.1}
    zeros = np.zeros(3)
    tokens = MiniBatchTokens(
        np.array(log_ratios), zeros, zeros, np.array(advantages), np.zeros(3, int)
    )
    numbers = LOSSES["gmpo"].of_mini_batch(tokens, UpdateSettings(policy_loss="gmpo", **bounds))
    assert numbers["log_ratio"].tolist() == pytest.approx([(-0.3 + 0.1 - 0.5) / 3] * 3)
    found, gradient = loss_of("gmpo", log_ratios, advantages, {"log_ratio": 0.0}, **bounds)
    assert gradient == [1.0, 0.0, 0.0]
    assert {name: where.tolist() for name, where in found.cuts.items()} == {
        "low": [False, False, True],
        "high": [False, True, False],
    }


def test_topr_does_not_push_down_what_is_unlearnt():
    _, gradient = loss_of("topr", [-3.0], [-1.0], {"log_product": -30.0})
    assert gradient[0] == pytest.approx(0.0, abs=1e-12)
    _, gradient = loss_of("topr", [-3.0], [1.0], {"log_product": -30.0})
    assert gradient == pytest.approx([-1.0])


def test_sapo_fades_on_both_sides_and_starts_as_the_plain_gradient():
    _, gradient = loss_of("sapo", [0.0, math.log(4), math.log(4)], [1.0, 1.0, -1.0])
    assert gradient[0] == pytest.approx(-1.0)
    assert -4 < gradient[1] < 0 < gradient[2] < 4
    # r f'(r), f' = 4 sigmoid(x)(1 - sigmoid(x)) with x = tau (r - 1)
    slope = 1 / (1 + math.exp(-3.0))
    assert gradient[1] == pytest.approx(-4 * 4 * slope * (1 - slope), rel=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_a_huge_log_ratio_and_a_zero_advantage_stay_finite(name):
    for size in (-500.0, 500.0):
        tokens = MiniBatchTokens(
            np.full(3, size), np.zeros(3), np.zeros(3), np.array([-1.0, 0.0, 1.0]), np.zeros(3, int)
        )
        settings, numbers = UpdateSettings(policy_loss=name), {}
        if LOSSES[name].of_mini_batch is not None:
            numbers = LOSSES[name].of_mini_batch(tokens, settings)
        found, gradient = loss_of(
            name, [size] * 3, [-1.0, 0.0, 1.0], {k: v[0] for k, v in numbers.items()}
        )
        assert torch.isfinite(found.loss_M).all() and torch.isfinite(found.ratio_M).all()
        assert np.isfinite(gradient).all()
