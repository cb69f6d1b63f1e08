"""Every loss, through the policy's own layouts and micro-batches."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_policy import MODES, gradient
from update_fixtures import assert_same_gradient, forked_groups, sample, tiny_model

from ajet.core.losses import LOSSES
from ajet.core.update.policy import Policy
from ajet.core.update.settings import CorrectionSettings, UpdateSettings

WIDE = dict(clip_low=0.9, clip_high=9.0)


def near(samples, seed=0, size=0.3):
    """The samples with old log-probabilities near the tiny model's own, so that ratios are near 1
    and no clip hides a gradient."""
    rng = np.random.default_rng(seed)
    scores = Policy(tiny_model(), UpdateSettings()).score(samples)
    return [
        replace(
            each,
            old_logprobs=np.where(each.loss_mask, s + rng.normal(0, size, len(s)), 0).astype("f4"),
        )
        for each, s in zip(samples, scores, strict=True)
    ]


@pytest.mark.parametrize("name", LOSSES)
def test_layouts_and_micro_batches_give_the_same_gradient_of_every_loss(name):
    samples = near(forked_groups())
    expected, whole = gradient(samples, batch_layout="padded", policy_loss=name, **WIDE)
    for layout in ("padded", "packed", "tree"):
        found, metrics = gradient(
            samples, batch_layout=layout, max_tokens_per_micro_batch=60, policy_loss=name, **WIDE
        )
        assert_same_gradient(found, expected)
        for key in ("loss", "pg_loss", "ratio_max", "grad_norm", "sampler_kl", "sampler_ess"):
            assert metrics[key] == pytest.approx(whole[key], rel=1e-4, abs=1e-6), key
    assert whole["grad_norm"] > 1e-2


@pytest.mark.parametrize("name", ["ppo", "gspo", "kl_cov"])
def test_layouts_and_micro_batches_mask_the_same_episodes(name):
    """The policy's distance is measured from the sampler, and the ratio from the trainer."""
    scores = Policy(tiny_model(), UpdateSettings()).score(forked_groups())
    rng = np.random.default_rng(0)
    samples = [
        replace(each, logprobs=np.where(each.loss_mask, s + rng.normal(0, 0.3), 0).astype("f4"))
        for each, s in zip(near(forked_groups()), scores, strict=True)
    ]
    mask = dict(policy_loss=name, off_policy_mask=0.1, **WIDE)
    expected, whole = gradient(samples, batch_layout="padded", **mask)
    assert 0 < whole["clip_fraction_off_policy"] < 0.5
    plain, _ = gradient(samples, batch_layout="padded", policy_loss=name, **WIDE)
    assert any((plain[n] - expected[n]).abs().max() > 1e-3 for n in plain)
    for layout in ("padded", "packed", "tree"):
        found, metrics = gradient(
            samples, batch_layout=layout, max_tokens_per_micro_batch=60, **mask
        )
        assert_same_gradient(found, expected)
        share = metrics["clip_fraction_off_policy"]
        assert share == pytest.approx(whole["clip_fraction_off_policy"])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", LOSSES)
def test_splitting_an_episode_leaves_the_gradient_of_every_loss_unchanged(name, mode):
    ids = [1, 2, 3, 4, 5, 6, 7]
    other = sample([1, 2, 9, 8], "0011", episode="b", advantage=-0.7)
    third = sample([1, 2, 9, 7], "0011", episode="c", advantage=0.4)
    whole, near_other, near_third = near([sample(ids, "0011011"), other, third])

    def part(mask):
        mask_T = np.array([c == "1" for c in mask])
        kept = np.where(mask_T, 1, 0).astype(np.float32)
        return replace(
            whole,
            loss_mask=mask_T,
            logprobs=whole.logprobs * kept,
            advantages=whole.advantages * kept,
            old_logprobs=whole.old_logprobs * kept,
        )

    split = [part("0011000"), near_other, part("0000010"), near_third, part("0000001")]
    settings = dict(policy_loss=name, loss_agg_mode=mode, **WIDE)
    expected, _ = gradient([whole, near_other, near_third], **settings)
    for budget in (100_000, 6):  # six tokens: every row is a micro-batch of its own
        found, _ = gradient(split, max_tokens_per_micro_batch=budget, **settings)
        assert_same_gradient(found, expected)


@pytest.mark.parametrize("name", [n for n, loss in LOSSES.items() if loss.scope == "episode"])
def test_a_timeline_without_advantage_counts_in_its_episodes_ratio(name):
    """Were it left out, the episode's ratio would be that of the other timeline alone."""
    first, second = near(
        [sample([1, 2, 3, 4], "0011", advantage=-1.0), sample([1, 2, 5, 6], "0011", advantage=0.0)],
        size=0.8,
    )
    second = replace(second, old_logprobs=second.old_logprobs + np.where(second.loss_mask, 0.5, 0))
    second = replace(second, old_logprobs=second.old_logprobs.astype("f4"))
    silent = dict(policy_loss=name, **WIDE)
    found, metrics = gradient([first, second], **silent)
    computed, _ = gradient([first, second], entropy_coef=1e-12, **silent)  # all are computed
    assert_same_gradient(found, computed)
    assert metrics["skipped_samples"] == 0
    alone, _ = gradient([first], **silent)
    largest = max(grad.abs().max() for grad in alone.values())
    assert any((found[n] - alone[n] / 2).abs().max() > 0.01 * largest for n in found)


def test_samples_old_log_probabilities_go_before_the_samplers():
    (given,) = near([sample([1, 2, 3, 4], "0011", advantage=1.0)])
    _, metrics = gradient([given], **WIDE)
    policy = Policy(tiny_model(), UpdateSettings())
    (score,) = policy.score([given])
    ratios = np.exp(score - given.old_logprobs)[given.loss_mask]
    assert metrics["ratio_max"] == pytest.approx(ratios.max(), rel=1e-5)
    assert metrics["pg_loss"] == pytest.approx(-ratios.mean(), rel=1e-5)
    # ... while the gap is to the sampler, whose log-probabilities are all -2
    gap = (score - given.logprobs)[given.loss_mask]
    assert metrics["sampler_kl"] == pytest.approx(-gap.mean(), rel=1e-5)
    assert metrics["sampler_kl_k3"] == pytest.approx((np.exp(gap) - 1 - gap).mean(), rel=1e-5)
    assert metrics["sampler_ratio_max"] == pytest.approx(np.exp(gap).max(), rel=1e-5)
    weights = np.exp(gap.astype(np.float64))
    ess = weights.sum() ** 2 / (2 * (weights**2).sum())
    assert metrics["sampler_ess"] == pytest.approx(ess, rel=1e-5)


def test_weights_multiply_the_policy_gradient_and_neither_kl_nor_entropy():
    (plain,) = near([sample([1, 2, 3, 4], "0011", advantage=1.0)])
    doubled = replace(plain, weights=np.array([0, 0, 2, 2], np.float32))
    once, _ = gradient([plain], **WIDE)
    twice, _ = gradient([doubled], **WIDE)
    assert_same_gradient(twice, {n: 2 * g for n, g in once.items()})
    none = replace(plain, weights=np.zeros(4, np.float32))
    left, _ = gradient([none], entropy_coef=1.0, **WIDE)
    with_entropy, _ = gradient([plain], entropy_coef=1.0, **WIDE)
    assert_same_gradient({n: once[n] + left[n] for n in once}, with_entropy)


def test_a_correction_computes_old_log_probabilities_and_weights_them():
    """By the token, unbounded: ratio 1 times exp(old - sampler)."""
    given = sample([1, 2, 3, 4], "0011", advantage=1.0, logprobs=[-2.0, -5.0])
    correction = CorrectionSettings(level="token", upper=1e9)
    found, metrics = gradient([given], correction=correction)
    policy = Policy(tiny_model(), UpdateSettings())
    (score,) = policy.score([given])
    weights = np.where(given.loss_mask, np.exp(score - given.logprobs), 0).astype("f4")
    by_hand = replace(given, old_logprobs=score, weights=weights)
    assert_same_gradient(found, gradient([by_hand])[0])
    assert metrics["ratio_max"] == pytest.approx(1.0, rel=1e-5)
    assert metrics["correction_ratio_max"] == pytest.approx(weights.max(), rel=1e-5)
    assert metrics["correction_ratio_max"] == pytest.approx(metrics["sampler_ratio_max"], rel=1e-5)


def test_a_rejected_episode_has_no_gradient_and_counts_in_the_mean():
    kept = sample([1, 2, 3], "001", episode="a", group="a")
    far = sample([1, 2, 4, 5], "0011", episode="b", group="b", logprobs=[-60.0, -60.0])
    (score,) = Policy(tiny_model(), UpdateSettings()).score([kept])
    kept = replace(kept, logprobs=score)
    reject = CorrectionSettings(level="sequence", mode="reject", lower=0.5, upper=2.0)
    found, metrics = gradient([kept, far], correction=reject)
    alone, _ = gradient([kept])
    assert_same_gradient(found, {n: g / 3 for n, g in alone.items()})
    assert metrics["rejected_tokens"] == 2 and metrics["truncated_tokens"] == 0
    assert metrics["correction_ess"] == pytest.approx(0.5)  # one of two episodes


def test_scores_are_the_policys_at_trained_tokens_in_every_layout():
    samples = forked_groups()
    model = tiny_model()
    for layout in ("padded", "packed", "tree"):
        settings = UpdateSettings(
            temperature=0.8, batch_layout=layout, max_tokens_per_micro_batch=60
        )
        scores = Policy(model, settings).score(samples)
        for each, score in zip(samples, scores, strict=True):
            assert score.dtype == np.float32 and len(score) == len(each)
            assert not score[~each.loss_mask].any()
            with torch.no_grad():
                logits = model(torch.from_numpy(each.token_ids)[None]).logits[0] / 0.8
            logprobs = logits.log_softmax(-1).numpy()
            places = np.flatnonzero(each.loss_mask)
            expected = logprobs[places - 1, each.token_ids[places]]
            np.testing.assert_allclose(score[places], expected, rtol=1e-4, atol=1e-5)


def test_reference_scores_stay_those_of_the_start():
    samples = forked_groups()
    policy = Policy(tiny_model(), UpdateSettings(lr=0.05, keep_reference=True))
    before = policy.score(samples)
    policy.update(samples)
    after, reference = policy.score(samples), policy.reference_scores(samples)
    np.testing.assert_allclose(np.concatenate(reference), np.concatenate(before), atol=1e-5)
    assert np.abs(np.concatenate(after) - np.concatenate(before)).max() > 0.1


def test_a_kept_reference_alone_adds_no_kl_to_the_loss():
    policy = Policy(tiny_model(), UpdateSettings(lr=0.05, keep_reference=True))
    policy.update(forked_groups())
    assert policy.update(forked_groups())["kl"] == 0


def test_epochs_are_passes_over_the_same_mini_batches():
    samples = forked_groups()
    seen = []
    twice = Policy(tiny_model(), UpdateSettings(lr=1e-3, mini_batch_num=3, ppo_epochs=2))
    metrics = twice.update(samples, on_progress=seen.append)
    by_hand = Policy(tiny_model(), UpdateSettings(lr=1e-3, mini_batch_num=3))
    first = by_hand.update(samples)
    second = by_hand.update(samples)
    for name, weight in twice.model.named_parameters():
        assert torch.equal(weight, dict(by_hand.model.named_parameters())[name])
    assert metrics["optimizer_steps"] == 6
    assert metrics["skipped_samples"] == first["skipped_samples"]
    assert metrics["pg_loss"] == pytest.approx((first["pg_loss"] + second["pg_loss"]) / 2)
    assert metrics["sampler_kl"] == first["sampler_kl"]  # of the first pass alone
    assert seen == sorted(seen) and seen[-1] == 1.0


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("level", ["none", "sequence"])
def test_nothing_to_learn_leaves_the_weights_as_they_are(name, level):
    """An empty batch, one without trained tokens, one whose every advantage is 0."""
    model = tiny_model()
    settings = UpdateSettings(
        lr=0.1, policy_loss=name, correction=CorrectionSettings(level=level), mini_batch_num=2
    )
    policy = Policy(model, settings)
    assert policy.update([])["optimizer_steps"] == 0
    assert policy.update([sample([1, 2, 3], "000")])["empty_mini_batches"] == 1
    metrics = policy.update([sample([1, 2, 3], "011", advantage=0.0)])
    assert metrics["groups_without_signal"] == 1
    assert np.isfinite(list(metrics.values())).all()
    for found, fresh in zip(model.parameters(), tiny_model().parameters(), strict=True):
        assert torch.equal(found, fresh)


@pytest.mark.parametrize("name", LOSSES)
def test_a_gradient_that_is_not_finite_changes_no_weight(name):
    model = tiny_model()
    with torch.no_grad():
        model.model.norm.weight[0] = float("inf")
    before = [p.detach().clone() for p in model.parameters()]
    metrics = Policy(model, UpdateSettings(lr=0.1, policy_loss=name)).update(forked_groups())
    assert (metrics["nonfinite_steps"], metrics["optimizer_steps"]) == (1, 0)
    for found, weight in zip(model.parameters(), before, strict=True):
        assert torch.equal(found, weight)


def test_a_mini_batch_that_is_rejected_whole_is_not_moved_by_momentum():
    reject = CorrectionSettings(level="token", mode="reject", lower=0.9, upper=1.1)
    settings = UpdateSettings(lr=0.1, weight_decay=0.1, correction=reject)
    policy = Policy(tiny_model(), settings)
    good = sample([1, 2, 3], "011")
    [score] = policy.score([good])
    policy.update([replace(good, logprobs=score)])
    before = {name: weight.clone() for name, weight in policy.model.named_parameters()}
    metrics = policy.update([sample([1, 2, 3], "011", logprobs=-9.0)])
    assert (metrics["rejected_tokens"], metrics["empty_mini_batches"]) == (2, 1)
    assert (metrics["optimizer_steps"], metrics["nonfinite_steps"]) == (0, 0)
    assert metrics["sampler_ratio_max"] > 1.1  # seen, though nothing was learnt from it
    for name, weight in policy.model.named_parameters():
        assert torch.equal(weight, before[name]) and weight.grad is None
