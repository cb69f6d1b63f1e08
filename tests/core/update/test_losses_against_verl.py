import importlib
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from loss_fixtures import random_batch

from ajet.core.update.correction import apply_correction
from ajet.core.update.critic import value_loss
from ajet.core.update.loss import episode_weights, kl_penalty
from ajet.core.update.settings import CorrectionSettings, UpdateSettings

MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
NO_DUAL_CLIP = 1e9  # verl has none without it


def close(found, expected):
    torch.testing.assert_close(found, expected.to(found.dtype), rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def verl_loss(verl_core_algos):
    """A loss of verl's by name, as (loss, gradient, metrics)."""
    config_class = importlib.import_module("verl.workers.config").ActorConfig

    def compute(name, batch, mode, weights=None, **settings):
        config = config_class(
            strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, ppo_micro_batch_size_per_gpu=1,
            global_batch_info={"loss_scale_factor": 7} if mode.endswith("norm") else {}, **settings,
        )  # fmt: skip
        logprobs_BT = batch.logprobs_BT.clone().requires_grad_()
        loss, metrics = verl_core_algos.get_policy_loss_fn(name)(
            batch.old_BT, logprobs_BT, batch.advantages_BT, batch.mask_BT, mode, config, weights
        )
        return loss, torch.autograd.grad(loss, logprobs_BT)[0], metrics

    return compute


CASES = [
    ("ppo", "vanilla", {}, {"clip_ratio_c": NO_DUAL_CLIP}),
    ("ppo", "vanilla", {"dual_clip": 1.5}, {"clip_ratio_c": 1.5}),
    ("gspo", "gspo", {}, {}),
    ("cispo", "cispo", {}, {}),
    ("gpg", "gpg", {}, {}),
    ("dppo_tv", "dppo_tv", {"dppo_max_ratio": 1.5}, {"clip_ratio_c": 1.5}),
    ("dppo_kl", "dppo_kl", {}, {"clip_ratio_c": 20.0}),
    ("sapo", "sapo", {"sapo_tau_pos": 0.8, "sapo_tau_neg": 1.3}, {"tau_pos": 0.8, "tau_neg": 1.3}),
]


# verl's sapo has one mode, whichever is asked for.
IN_MODES = [
    (*case, mode) for case in CASES for mode in (MODES if case[0] != "sapo" else MODES[2:3])
]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("name", "theirs", "own", "their_own", "mode"), IN_MODES)
def test_losses_and_gradients_are_verls(verl_loss, name, theirs, own, their_own, mode, seed):
    batch = random_batch(seed)
    batch.old_BT.clamp_(max=-0.01)  # dppo reads probabilities
    settings = UpdateSettings(
        policy_loss=name, clip_low=0.2, clip_high=0.28, loss_agg_mode=mode,
        loss_scale_factor=7.0, **own,
    )  # fmt: skip
    clip = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
    loss, gradient, _ = batch.loss(settings)
    expected_loss, expected_gradient, _ = verl_loss(theirs, batch, mode, **clip, **their_own)
    close(loss, expected_loss)
    close(gradient, expected_gradient)
    assert gradient.abs().max() > 1e-3


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
@pytest.mark.parametrize("mode", MODES)
def test_losses_that_choose_tokens_are_verls(verl_loss, name, mode, seed):
    """clip_cov chooses all tokens between its bounds here, because verl draws them at random."""
    batch = random_batch(seed)
    share = 0.9 if name == "clip_cov" else 0.2
    settings = UpdateSettings(
        policy_loss=name, loss_agg_mode=mode, loss_scale_factor=7.0, clip_low=0.2, clip_high=0.28,
        cov_share=share, clip_cov_low=0.1, clip_cov_high=2.0, kl_cov_coef=0.7,
    )  # fmt: skip
    loss, gradient, found = batch.loss(settings)
    own = importlib.import_module("verl.workers.config").PolicyLossConfig(
        clip_cov_ratio=share, clip_cov_lb=0.1, clip_cov_ub=2.0, kl_cov_ratio=share, ppo_kl_coef=0.7
    )
    expected_loss, expected_gradient, metrics = verl_loss(
        name, batch, mode, clip_ratio_low=0.2, clip_ratio_high=0.28, policy_loss=own
    )
    close(loss, expected_loss)
    close(gradient, expected_gradient)
    assert 0 < found.cuts["cov"].double().mean() < 1
    if name == "clip_cov":
        assert found.cuts["cov"].double().mean().item() == pytest.approx(
            metrics["actor/pg_clipfrac"]
        )


@pytest.mark.parametrize("seed", range(5))
def test_gmpo_is_verls(verl_loss, seed):
    batch = random_batch(seed, per_row_advantages=True)  # verl takes a row's mean
    settings = UpdateSettings(
        policy_loss="gmpo", loss_agg_mode="seq-mean-token-mean", clip_low=0.4, clip_high=0.4
    )
    loss, gradient, found = batch.loss(settings)
    expected_loss, expected_gradient, _ = verl_loss(
        "geo_mean", batch, "token-mean", clip_ratio_low=0.4, clip_ratio_high=0.4
    )
    close(loss, expected_loss)
    close(gradient, expected_gradient)
    assert found.cuts["low"].any() and found.cuts["high"].any()


@pytest.mark.parametrize("name", ["dppo_tv", "dppo_kl"])
def test_tokens_that_dppo_leaves_out_are_verls(verl_loss, name):
    batch = random_batch(0)
    batch.old_BT.clamp_(max=-0.01)
    bounds = {"dppo_tv": (0.03, 0.05), "dppo_kl": (0.02, 0.03)}[name]
    settings = UpdateSettings(policy_loss=name, clip_low=bounds[0], clip_high=bounds[1])
    _, gradient, found = batch.loss(settings)
    _, expected, metrics = verl_loss(
        name, batch, "token-mean", clip_ratio_low=bounds[0], clip_ratio_high=bounds[1],
        clip_ratio_c=20.0,
    )  # fmt: skip
    close(gradient, expected)
    share = sum(cut.double().mean().item() for cut in found.cuts.values())
    # verl counts tokens without advantage among those of negative ones
    assert 0 < share <= metrics["actor/pg_clipfrac"] + 1e-6
    assert found.cuts["low"].any() and found.cuts["high"].any()


@pytest.mark.parametrize("name", ["ppo", "cispo"])
def test_clip_fractions_are_verls(verl_loss, name):
    batch = random_batch(0)
    settings = UpdateSettings(policy_loss=name, clip_low=0.2, clip_high=0.28, dual_clip=1.5)
    cuts = batch.loss(settings)[2].cuts
    _, _, metrics = verl_loss(
        "vanilla" if name == "ppo" else name, batch, "token-mean",
        clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=1.5,
    )  # fmt: skip
    share = {cut: is_cut_M.double().mean().item() for cut, is_cut_M in cuts.items()}
    assert share["low"] + share["high"] == pytest.approx(metrics["actor/pg_clipfrac"])
    assert share["low"] > 0 and share["high"] > 0
    if name == "ppo":
        assert share["dual"] == pytest.approx(metrics["actor/pg_clipfrac_lower"]) and share["dual"]


@pytest.mark.parametrize("mode", MODES)
def test_aggregation_is_verls(verl_core_algos, mode):
    batch = random_batch(1)
    batch.mask_BT[2] = 0  # an episode without trained tokens
    samples, losses_BT = batch.samples(), batch.logprobs_BT
    weights = episode_weights(samples, UpdateSettings(loss_agg_mode=mode, loss_scale_factor=11.0))
    found = sum(
        weights.get(s.episode_id, 0.0) * (row * mask).sum()
        for s, row, mask in zip(samples, losses_BT, batch.mask_BT, strict=True)
    )
    expected = verl_core_algos.agg_loss(losses_BT, batch.mask_BT, mode, loss_scale_factor=11)
    close(found, expected)


@pytest.mark.parametrize("cliprange", [0.05, 0.3])
def test_the_value_loss_is_verls(verl_core_algos, cliprange):
    rng = np.random.default_rng(0)
    returns, old, moved = (torch.from_numpy(rng.normal(size=(4, 6))) for _ in range(3))
    mask = torch.from_numpy((rng.random((4, 6)) < 0.6).astype(np.float64))
    values = (old + 0.4 * moved).requires_grad_()
    loss, is_cut = value_loss(values, returns, old, cliprange)
    found = (loss * mask).sum() / mask.sum()
    expected, share = verl_core_algos.compute_value_loss(values, returns, old, mask, cliprange)
    close(found, expected)
    close(*(torch.autograd.grad(each, values)[0] for each in (found, expected)))
    assert ((is_cut * mask).sum() / mask.sum()).item() == pytest.approx(share.item())
    assert share > 0


@pytest.mark.parametrize(
    ("kind", "theirs"),
    [("k1", "k1+"), ("k2", "k2"), ("low_var_kl", "low_var_kl"), ("low_var_kl+", "low_var_kl+")],
)
def test_kl_estimates_and_their_gradients_are_verls(verl_core_algos, kind, theirs):
    batch = random_batch(2)
    logprobs_BT = (4 * batch.logprobs_BT).requires_grad_()  # some beyond the cut of k3
    found = kl_penalty(logprobs_BT, batch.old_BT, kind)
    expected = verl_core_algos.kl_penalty(logprobs_BT, batch.old_BT, theirs)
    close(found, expected)
    close(*(torch.autograd.grad(each.sum(), logprobs_BT)[0] for each in (found, expected)))


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(("mode", "threshold"), [("truncate", 1.3), ("reject", "0.6_1.3")])
def test_correction_weights_are_verls(verl_core_algos, level, mode, threshold):
    helper = importlib.import_module("verl.trainer.ppo.rollout_corr_helper")
    batch = random_batch(3)
    log_ratio_BT = 0.5 * (batch.logprobs_BT - batch.old_BT)
    expected_BT, metrics = helper.compute_rollout_correction_weights(
        log_ratio_BT, batch.mask_BT, level, threshold
    )
    samples = with_log_ratios(batch, log_ratio_BT)
    lower = 0.6 if mode == "reject" else 0.0
    weighted, found = apply_correction(
        samples, CorrectionSettings(level=level, mode=mode, upper=1.3, lower=lower)
    )
    for row, mask, expected in zip(weighted, batch.mask_BT.bool(), expected_BT, strict=True):
        close(torch.from_numpy(row.weights[1:])[mask], expected[mask])
    if level == "token":
        ess = metrics["rollout_is_eff_sample_size"]
        assert found["correction_ess"] == pytest.approx(ess, abs=1e-6)
    assert found["truncated_tokens"] + found["rejected_tokens"] > 0


def with_log_ratios(batch, log_ratio_BT):
    samples = []
    for row, log_ratio_T in zip(batch.samples(), log_ratio_BT, strict=True):
        logprobs = np.where(row.loss_mask, -1.0, 0.0).astype(np.float32)
        ratios = np.concatenate(([0.0], log_ratio_T.numpy())).astype(np.float32)
        samples.append(replace(row, logprobs=logprobs, old_logprobs=logprobs + ratios))
    return samples


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("measure", "bound", "theirs"),
    [
        ("token_k1", 0.3, str(math.exp(0.3))),
        ("token_k1", (-0.2, 0.4), f"{math.exp(-0.2)}_{math.exp(0.4)}"),
        ("token_k2", 0.1, "0.1"),
        ("token_k3", 0.1, "0.1"),
        ("seq_sum_k1", 0.5, str(math.exp(0.5))),
        ("seq_sum_k2", 0.3, "0.3"),
        ("seq_sum_k3", 0.3, "0.3"),
        ("seq_mean_k1", 0.08, str(math.exp(0.08))),
        ("seq_mean_k2", 0.06, "0.06"),
        ("seq_mean_k3", 0.06, "0.06"),
        ("seq_max_k2", 0.2, "0.2"),
        ("seq_max_k3", 0.2, "0.2"),
    ],
)
def test_rejected_tokens_are_verls(verl_core_algos, measure, bound, theirs, seed):
    helper = importlib.import_module("verl.trainer.ppo.rollout_corr_helper")
    batch = random_batch(seed)
    log_ratio_BT = 0.5 * (batch.logprobs_BT - batch.old_BT)
    expected_BT, metrics = helper.compute_rollout_rejection_mask(
        log_ratio_BT, batch.mask_BT, measure, theirs
    )
    bounds = bound if isinstance(bound, tuple) else (-bound, bound)
    settings = CorrectionSettings(reject={measure: bounds}, count_rejected=False)
    kept, found = apply_correction(with_log_ratios(batch, log_ratio_BT), settings)
    for row, expected_T in zip(kept, expected_BT.bool(), strict=True):
        assert row.loss_mask[1:].tolist() == expected_T.tolist()
    assert found["rejected_share"] == pytest.approx(metrics["rollout_rs_masked_fraction"])
    assert found[f"rejected_share_{measure}"] == found["rejected_share"]


def test_every_measure_must_let_a_token_pass_as_in_verl(verl_core_algos):
    helper = importlib.import_module("verl.trainer.ppo.rollout_corr_helper")
    batch = random_batch(0)
    log_ratio_BT = 0.5 * (batch.logprobs_BT - batch.old_BT)
    expected_BT, _ = helper.compute_rollout_rejection_mask(
        log_ratio_BT, batch.mask_BT, "token_k3,seq_mean_k2", "0.2,0.08"
    )
    reject = {"token_k3": (-0.2, 0.2), "seq_mean_k2": (-0.08, 0.08)}
    settings = CorrectionSettings(reject=reject, count_rejected=False)
    kept, found = apply_correction(with_log_ratios(batch, log_ratio_BT), settings)
    masks = np.stack([row.loss_mask[1:] for row in kept])
    assert (masks == expected_BT.bool().numpy()).all()
    shares = [found[f"rejected_share_{measure}"] for measure in reject]
    assert max(shares) <= found["rejected_share"] <= sum(shares) and min(shares) > 0


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_normalised_weights_are_verls(verl_core_algos, level):
    helper = importlib.import_module("verl.trainer.ppo.rollout_corr_helper")
    batch = random_batch(3)
    log_ratio_BT = 0.5 * (batch.logprobs_BT - batch.old_BT)
    expected_BT, metrics = helper.compute_rollout_correction_weights(
        log_ratio_BT, batch.mask_BT, level, 1.3, rollout_is_batch_normalize=True
    )
    settings = CorrectionSettings(level=level, upper=1.3, normalize=True)
    weighted, _ = apply_correction(with_log_ratios(batch, log_ratio_BT), settings)
    for row, mask, expected in zip(weighted, batch.mask_BT.bool(), expected_BT, strict=True):
        close(torch.from_numpy(row.weights[1:])[mask], expected[mask])
    assert abs(metrics["rollout_is_batch_norm_factor"] - 1) > 0.01
