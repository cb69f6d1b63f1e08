"""What the old policy of a ratio is, against formulas written out here, in float64."""

import pytest
import torch
from update_fixtures import sample, tiny_model

from ajet.core.model.precision import to_float64
from ajet.core.update.policy import Policy
from ajet.core.update.settings import CorrectionSettings, UpdateSettings

# One group for each mini-batch. The trainer's probabilities over the sampler's are .88 and 2.1 in
# episode a, .37 and 1.02 in b, so that the clip cuts one token of each, and 1.1, .79 and .34 in c.
FIRST = [
    sample([1, 2, 3, 4], "0011", episode="a", group="a", advantage=1.0, logprobs=[-2.6, -5.2]),
    sample([1, 2, 9, 8], "0011", episode="b", group="a", advantage=-0.5, logprobs=[-5.0, -5.5]),
]
SECOND = [sample([5, 6, 7, 3], "0111", episode="c", group="c", logprobs=[-4.0, -5.3, -5.0])]
LOW, HIGH, UPPER = 0.2, 0.28, 1.5
CLIP = dict(lr=0.01, grad_clip=0.0, clip_low=LOW, clip_high=HIGH)
WEIGHTS = CorrectionSettings(level="token", upper=UPPER)
MODES = {
    "the sampler's": dict(old_logprobs="sampler"),
    "the trainer's": dict(old_logprobs="trainer"),
    "the trainer's, weighted": dict(old_logprobs="trainer", correction=WEIGHTS),
}


def wide_model():
    return to_float64(tiny_model())


def logprobs_of(model, given):
    """Of the trained tokens of a sample."""
    ids = torch.from_numpy(given.token_ids)
    trained = given.loss_mask.nonzero()[0]
    return model(ids[None]).logits[0].log_softmax(-1)[trained - 1, ids[trained]]


def loss_by_hand(mode, model, before, samples):
    """The mean over tokens of w max(-r A, -clip(r) A); `before` is the model before the update."""
    losses = []
    for given in samples:
        sampler = torch.from_numpy(given.logprobs[given.loss_mask]).double()
        advantage = torch.from_numpy(given.advantages[given.loss_mask]).double()
        with torch.no_grad():
            trainer = logprobs_of(before, given)
        old = sampler if mode == "the sampler's" else trainer
        ratio = (logprobs_of(model, given) - old).exp()
        loss = torch.maximum(-ratio * advantage, -ratio.clamp(1 - LOW, 1 + HIGH) * advantage)
        if mode == "the trainer's, weighted":
            loss = (trainer - sampler).exp().clamp(max=UPPER) * loss
        losses.append(loss)
    return torch.cat(losses).mean()


def gradient_by_hand(mode, model, before, samples):
    names, weights = zip(*model.named_parameters(), strict=True)
    loss = loss_by_hand(mode, model, before, samples)
    return dict(zip(names, torch.autograd.grad(loss, weights), strict=True))


def trained(mode, samples, **settings):
    """A policy after one update, with AdamW's first moments by the weights' names."""
    policy = Policy(wide_model(), UpdateSettings(**CLIP, **MODES[mode], **settings))
    metrics = policy.update(samples)
    moments = {
        name.removesuffix(".exp_avg"): tensor
        for name, tensor in policy.optimizer.tensors().items()
        if name.endswith(".exp_avg")
    }
    return policy, moments, metrics


def assert_close(found, expected):
    """To the rounding of the samples' arrays, which are float32."""
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-6, msg=name)
        assert tensor.dtype == torch.float64
    assert max(tensor.abs().max() for tensor in expected.values()) > 1e-3


@pytest.mark.parametrize("mode", MODES)
def test_the_first_gradient_has_the_old_policy_that_is_named(mode):
    _, moments, _ = trained(mode, FIRST)
    expected = gradient_by_hand(mode, wide_model(), wide_model(), FIRST)
    assert_close({n: 10 * m for n, m in moments.items()}, expected)


@pytest.mark.parametrize("mode", MODES)
def test_the_old_policy_stays_that_of_before_the_update_in_later_mini_batches(mode):
    _, moments, _ = trained(mode, FIRST + SECOND, mini_batch_num=2)
    halfway, first, _ = trained(mode, FIRST)
    second = gradient_by_hand(mode, halfway.model, wide_model(), SECOND)
    assert_close(moments, {n: 0.9 * first[n] + 0.1 * g for n, g in second.items()})


@pytest.mark.parametrize("one, other", [("the sampler's", "the trainer's"),
                                        ("the trainer's", "the trainer's, weighted")])  # fmt: skip
def test_the_three_are_three(one, other):
    gradients = [gradient_by_hand(mode, wide_model(), wide_model(), FIRST) for mode in (one, other)]
    assert max((gradients[0][n] - gradients[1][n]).abs().max() for n in gradients[0]) > 1e-3


def test_without_weights_the_ratio_begins_at_one_and_the_gap_to_the_sampler_is_still_told():
    _, _, metrics = trained("the trainer's", FIRST)
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["logprob_diff_max"] > 0.5 and "correction_ess" not in metrics
