import math

import pytest
import torch
from update_fixtures import sample

from ajet.core.update.layouts.layout import ForwardOutput
from ajet.core.update.loss import episode_weights, kl_penalty, score_tokens
from ajet.core.update.settings import UpdateSettings

# Episode a: two timelines with 2 and 1 trained tokens; episode b: one with 1; c: none.
SAMPLES = [
    sample([1, 2, 3], "011", episode="a"),
    sample([1, 2, 3, 4], "0001", episode="a"),
    sample([1, 2], "01", episode="b", advantage=0.0),
    sample([1, 2], "00", episode="c"),
]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", {"a": 1 / 4, "b": 1 / 4}),
        ("seq-mean-token-sum", {"a": 1 / 2, "b": 1 / 2}),
        ("seq-mean-token-mean", {"a": 1 / 6, "b": 1 / 2}),
        ("seq-mean-token-sum-norm", {"a": 1 / 6, "b": 1 / 6}),  # longest episode: 3 tokens
    ],
)
def test_weights_count_episodes_not_timelines(mode, expected):
    found = episode_weights(SAMPLES, UpdateSettings(loss_agg_mode=mode))
    assert found == pytest.approx(expected)


def test_the_norm_of_sum_norm_can_be_a_constant():
    settings = UpdateSettings(loss_agg_mode="seq-mean-token-sum-norm", loss_scale_factor=10.0)
    assert episode_weights(SAMPLES, settings) == pytest.approx({"a": 0.05, "b": 0.05})


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("k1", 0.5),
        ("k2", 0.125),
        ("low_var_kl", math.exp(-0.5) + 0.5 - 1),
        ("low_var_kl+", math.exp(-0.5) + 0.5 - 1),
    ],
)
def test_kl_estimates(kind, expected):
    found = kl_penalty(torch.tensor([-1.0]), torch.tensor([-1.5]), kind)
    assert found.item() == pytest.approx(expected, abs=1e-6)


D = [-5.0, -2.7, -2.5, -0.5, 0.0, 0.5, 3.0, 10.9, 11.5]  # log pi - log reference
CUT = [True, True, False, False, False, False, False, False, True]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("k1", D),
        ("k2", D),
        ("low_var_kl+", D),
        ("low_var_kl", [0.0 if cut else 1 - math.exp(-d) for d, cut in zip(D, CUT, strict=True)]),
    ],
)
def test_the_gradient_of_each_kl_estimate_is_the_documented_one(kind, expected):
    logprobs = (torch.tensor(D, dtype=torch.float64) - 20).requires_grad_()
    found = kl_penalty(logprobs, torch.full_like(logprobs, -20.0), kind)
    assert torch.autograd.grad(found.sum(), logprobs)[0].tolist() == pytest.approx(expected)
    if kind.startswith("low_var_kl"):
        assert (found == 10).tolist() == CUT


def test_logprobs_and_entropy_are_of_the_tempered_distribution():
    logits = torch.tensor([[0.0, 2 * math.log(3.0)]])  # at temperature 2: probabilities 1/4, 3/4
    read = ForwardOutput(logits, torch.nn.Identity(), 2, torch.tensor([0, 0]))
    scores = score_tokens(read, torch.tensor([0, 1]), 2.0, False)
    assert scores.logprobs_M.tolist() == pytest.approx([math.log(0.25), math.log(0.75)])
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert scores.entropy_M.tolist() == pytest.approx([entropy, entropy])


def test_slices_of_the_logits_give_the_same_scores_and_gradient():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(7, 4, generator=generator).requires_grad_()
    weight = torch.randn(9, 4, generator=generator).requires_grad_()
    index, targets = torch.tensor([6, 0, 3, 3, 1, 5, 2]), torch.tensor([0, 8, 1, 2, 3, 4, 5])
    read = ForwardOutput(features, lambda x: x @ weight.T, 9, index)
    results = []
    for max_logits in (1000, 18):  # at once; two rows at a time
        scores = score_tokens(read, targets, 0.7, True, max_logits)
        probe = (scores.logprobs_M * torch.arange(7)).sum() + scores.entropy_M.sum()
        gradients = torch.autograd.grad(probe, (features, weight))
        results.append((scores.logprobs_M, scores.entropy_M, *gradients))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)
