import math

import pytest
import torch

from ajet.core.losses.ppo import ppo
from ajet.core.losses.token_loss import LossInputs
from ajet.core.update.settings import UpdateSettings


def objective(ratios, advantages, **settings):
    logprobs = torch.tensor([math.log(r) for r in ratios])
    tokens = LossInputs(logprobs, torch.zeros(len(ratios)), torch.tensor(advantages))
    found = ppo(tokens, UpdateSettings(**settings))
    assert found.ratio_M.tolist() == pytest.approx(ratios)
    return found


def test_the_clip_is_asymmetric_and_pessimistic():
    # high clip at 1.28 for gains, low clip at 0.8 for losses; the other side is not clipped
    found = objective([2.0, 2.0, 0.5, 0.5], [1.0, -1.0, 1.0, -1.0], clip_low=0.2, clip_high=0.28)
    assert found.loss_M.tolist() == pytest.approx([-1.28, 2.0, -0.5, 0.8])
    assert found.cuts["high"].tolist() == [True, False, False, False]
    assert found.cuts["low"].tolist() == [False, False, False, True]


def test_dual_clip_limits_the_loss_of_negative_advantages_alone():
    found = objective([9.0, 9.0, 2.0], [-1.0, 1.0, -1.0], dual_clip=3.0)
    assert found.loss_M.tolist() == pytest.approx([3.0, -1.2, 2.0])
    assert found.cuts["dual"].tolist() == [True, False, False]


def test_a_huge_log_ratio_stays_finite():
    tokens = LossInputs(torch.tensor([0.0]), torch.tensor([-500.0]), torch.tensor([-1.0]))
    assert torch.isfinite(ppo(tokens, UpdateSettings()).loss_M).all()
