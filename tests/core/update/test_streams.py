"""The loss as a sum of components, each with its own denominator over the mini-batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from update_fixtures import forked_groups, sample, tiny_model, with_streams

from ajet.core.update.loss import component_weights
from ajet.core.update.policy import Policy
from ajet.core.update.settings import CorrectionSettings, UpdateSettings

ALL = dict(kl_loss_coef=0.1, kl_loss_type="k2", entropy_coef=0.01, kl_teacher_coef=0.5)


def given(ids, mask, **of):
    """A sample whose trained tokens were given."""
    plain = sample(ids, mask, advantage=0.0, **of)
    return replace(plain, streams={"cross_entropy": plain.loss_mask.astype(np.float32)})


def gradient(samples, **settings):
    policy = Policy(tiny_model(), UpdateSettings(lr=0.0, grad_clip=0.0, **settings))
    metrics = policy.update(samples)
    tensors = policy.optimizer.tensors()
    return {n: 10 * t for n, t in tensors.items() if n.endswith(".exp_avg")}, metrics


def logprobs(model, each):
    """Of the trained tokens, by transformers' own forward."""
    ids = torch.from_numpy(each.token_ids)[None]
    logits = model(ids).logits[0, :-1].log_softmax(-1)
    return logits.gather(1, ids[0, 1:, None])[:, 0][torch.from_numpy(each.loss_mask[1:])]


def gradients_of(loss, model):
    loss.backward()
    return {f"{n}.exp_avg": p.grad for n, p in model.named_parameters()}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=5e-6, msg=name)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("budget", [60, 100_000])
@pytest.mark.parametrize("layout", ["padded", "packed", "tree"])
def test_layouts_and_micro_batches_give_mixed_streams_the_same_gradient(layout, budget, seed):
    samples = with_streams(forked_groups(seed))
    expected, whole = gradient(samples, batch_layout="padded", **ALL)
    found, metrics = gradient(
        samples, batch_layout=layout, max_tokens_per_micro_batch=budget, **ALL
    )
    assert_same(found, expected)
    for name in ("loss", "pg_loss", "kl", "cross_entropy", "kl_teacher", "sampler_kl"):
        assert metrics[name] == pytest.approx(whole[name], rel=1e-4, abs=1e-6), name


def test_a_sample_that_spells_out_the_default_streams_trains_as_one_without():
    samples = forked_groups()
    spelled = []
    for each in samples:
        ones = each.loss_mask.astype(np.float32)
        spelled.append(replace(each, streams={"policy_gradient": ones, "kl_reference": ones}))
    settings = ALL | dict(policy_loss="gspo", correction=CorrectionSettings(level="sequence"))
    (expected, _), (found, _) = gradient(samples, **settings), gradient(spelled, **settings)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_cross_entropy_is_the_mean_over_given_tokens():
    samples = [given([1, 2, 3, 4], "0011"), given([1, 5, 6], "001", episode="b")]
    model = tiny_model()
    loss = -torch.cat([logprobs(model, each) for each in samples]).sum() / 3
    found, metrics = gradient(samples)
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["cross_entropy"] == pytest.approx(loss.item(), rel=1e-5)
    assert_same(found, gradients_of(loss, model))


def test_a_weight_scales_its_token_and_not_the_denominator():
    plain = given([1, 2, 3, 4], "0011")
    weighted = replace(plain, streams={"cross_entropy": np.float32([0, 0, 1, 0.25])})
    model = tiny_model()
    of_tokens = -logprobs(model, plain)
    found, _ = gradient([weighted])
    assert_same(found, gradients_of((of_tokens[0] + 0.25 * of_tokens[1]) / 2, model))


def test_each_component_has_its_own_denominator():
    sampled = sample([1, 2, 3, 4], "0011", episode="a", advantage=2.0)
    shown = given([1, 7, 8, 9, 10], "00111", episode="b", group="g1")
    settings = UpdateSettings()
    assert component_weights([sampled, shown], settings) == {
        "policy_gradient": {"a": 1 / 2},
        "cross_entropy": {"b": 1 / 3},
    }
    both, _ = gradient([sampled, shown])
    (alone, _), (other, _) = gradient([sampled]), gradient([shown])
    assert_same(both, {name: alone[name] + other[name] for name in alone})


def test_the_teacher_pulls_by_the_difference_of_the_log_probabilities():
    plain = sample([1, 2, 3, 4], "0011", advantage=0.0)
    ones = plain.loss_mask.astype(np.float32)
    teacher = np.float32([0, 0, -1.5, -3.0])
    scored = replace(plain, streams={"kl_teacher": ones}, teacher_logprobs=teacher)
    model = tiny_model()
    of_policy = logprobs(model, scored)
    difference = of_policy.detach() - torch.from_numpy(teacher[2:])
    found, metrics = gradient([scored], kl_teacher_coef=0.5)
    assert metrics["kl_teacher"] == pytest.approx(difference.mean().item(), rel=1e-5)
    assert_same(found, gradients_of(0.5 * (difference * of_policy).mean(), model))


def test_the_pull_of_the_teacher_is_weighted_by_the_correction():
    plain = sample([1, 2, 3, 4], "0011", advantage=0.0)
    ones = plain.loss_mask.astype(np.float32)
    teacher = np.float32([0, 0, -1.5, -3.0])
    scored = replace(plain, streams={"kl_teacher": ones}, teacher_logprobs=teacher)
    model = tiny_model()
    of_policy = logprobs(model, scored)
    # The sampler gave the first token half of the policy's probability, the second a quarter more.
    sampler = of_policy.detach() + torch.tensor([1 / 2, 5 / 4]).log()
    scored.logprobs[scored.loss_mask] = sampler.numpy()
    weights = torch.tensor([2.0, 4 / 5])
    difference = of_policy.detach() - torch.from_numpy(teacher[2:])
    correction = CorrectionSettings(level="token", upper=100.0)
    found, _ = gradient([scored], old_logprobs="trainer", correction=correction)
    assert_same(found, gradients_of((weights * difference * of_policy).mean(), model))


def test_given_tokens_reach_neither_the_policy_loss_nor_the_comparison_with_the_sampler():
    sampled = sample([1, 2, 3], "001", logprobs=[-3.0])
    shown = given([1, 5, 6, 7], "0011", episode="b", logprobs=[-90.0, -90.0])
    correction = CorrectionSettings(level="token", reject={"token_k1": (-9.0, 9.0)})
    (_, alone), (_, both) = (
        gradient(each, correction=correction, policy_loss="gspo")
        for each in ([sampled], [sampled, shown])
    )
    for name in ("pg_loss", "sampler_kl", "ratio_max", "correction_ess", "rejected_tokens"):
        assert both[name] == pytest.approx(alone[name], rel=1e-5), name


def test_given_samples_alone_are_trained_without_advantages():
    _, metrics = gradient([given([1, 2, 3], "001")], policy_loss="clip_cov", off_policy_mask=0.1)
    assert (metrics["optimizer_steps"], metrics["groups_without_signal"]) == (1, 0)
    assert "pg_loss" not in metrics and "sampler_kl" not in metrics


def test_a_stream_has_the_length_of_its_sample():
    with pytest.raises(ValueError, match="cross_entropy"):
        replace(sample([1, 2, 3], "001"), streams={"cross_entropy": np.ones(2, np.float32)})
