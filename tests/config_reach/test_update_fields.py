"""Each field of the update's settings changes what the policy made of the config computes.

`FIELDS` has the keys that set a field, and what differs by it after two updates of a small model on
the same samples: its weights, or what an update tells of itself.
"""

import functools
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ajet import assembly
from ajet.core.model.load import LoadedModel
from tests.config_reach.test_settings import LORA, A, R, T, config_of
from tests.core.update.update_fixtures import forked_groups, sample, tiny_model

SAMPLES = forked_groups(num_groups=2, group_size=2)
PLAIN = {f"{T}.use_kl_loss": False, f"{T}.optim.lr": 0.01, f"{R}.temperature": 1.0}
WITH_KL = {f"{T}.use_kl_loss": True, f"{T}.kl_loss_coef": 0.5}
SAPO = {f"{A}.policy_loss": "sapo"}
VESPO = {f"{A}.policy_loss": "vespo"}
DPPO = {f"{A}.policy_loss": "dppo_tv", f"{A}.clip_low": 1.0, f"{A}.clip_high": 1.0}
CLIP_COV = {f"{A}.policy_loss": "clip_cov", f"{A}.cov_share": 0.1, f"{A}.clip_cov_low": 0.01}
KL_COV = {f"{A}.policy_loss": "kl_cov", f"{A}.cov_share": 0.1}
LINEAR = {f"{T}.optim.lr_schedule": "linear", f"{T}.total_training_steps": 2}
NORM = {f"{A}.loss_agg_mode": "seq-mean-token-sum-norm", f"{T}.optim.grad_clip": 1e6}

FIELDS = {
    "lr": ({}, {f"{T}.optim.lr": 0.02}, "weights"),
    "betas": ({}, {f"{T}.optim.betas": [0.5, 0.999]}, "weights"),
    "weight_decay": ({}, {f"{T}.optim.weight_decay": 0.5}, "weights"),
    "grad_clip": ({}, {f"{T}.optim.grad_clip": 0.01}, "moments"),
    "warmup_steps": ({}, {f"{T}.optim.warmup_steps": 2}, "weights"),
    "lr_schedule": ({f"{T}.total_training_steps": 2}, LINEAR, "weights"),
    "total_steps": (LINEAR, {f"{T}.total_training_steps": 4}, "weights"),
    "min_lr_ratio": (LINEAR, {f"{T}.optim.min_lr_ratio": 0.5}, "weights"),
    "policy_loss": ({}, {f"{A}.policy_loss": "gspo"}, "weights"),
    "clip_low": ({}, {f"{A}.clip_low": 0.9}, "weights"),
    "clip_high": ({}, {f"{A}.clip_high": 0.9}, "weights"),
    "dual_clip": ({}, {f"{A}.dual_clip": 1.1}, "weights"),
    "sapo_tau_pos": (SAPO, {f"{A}.sapo_tau_pos": 3.0}, "weights"),
    "sapo_tau_neg": (SAPO, {f"{A}.sapo_tau_neg": 3.0}, "weights"),
    "vespo_k_pos": (VESPO, {f"{A}.vespo_k_pos": 0.5}, "weights"),
    "vespo_k_neg": (VESPO, {f"{A}.vespo_k_neg": 0.5}, "weights"),
    "vespo_lambda_pos": (VESPO, {f"{A}.vespo_lambda_pos": 0.5}, "weights"),
    "vespo_lambda_neg": (VESPO, {f"{A}.vespo_lambda_neg": 0.5}, "weights"),
    "dppo_max_ratio": (DPPO, {f"{A}.dppo_max_ratio": 0.01}, "weights"),
    "cov_share": (KL_COV, {f"{A}.cov_share": 0.5}, "weights"),
    "clip_cov_low": (CLIP_COV, {f"{A}.clip_cov_low": 4.0}, "weights"),
    "clip_cov_high": (CLIP_COV, {f"{A}.clip_cov_high": 0.02}, "weights"),
    "kl_cov_coef": (KL_COV, {f"{A}.kl_cov_coef": 9.0}, "weights"),
    "off_policy_mask": ({}, {f"{A}.off_policy_mask": 0.001}, "weights"),
    "seed": (CLIP_COV, {"ajet.seed": 7}, "weights"),
    "temperature": ({}, {f"{R}.temperature": 0.5}, "weights"),
    "kl_loss_coef": (WITH_KL, {f"{T}.kl_loss_coef": 5.0}, "weights"),
    "keep_reference": ({}, {f"{A}.use_kl_in_reward": True}, "has a reference"),
    "kl_loss_type": (WITH_KL, {f"{T}.kl_loss_type": "k2"}, "weights"),
    "entropy_coef": ({}, {f"{A}.entropy_coef": 0.5}, "weights"),
    "loss_agg_mode": ({}, {f"{A}.loss_agg_mode": "seq-mean-token-mean"}, "weights"),
    "loss_scale_factor": (NORM, {"ajet.data.max_response_length": 30}, "moments"),
    "old_logprobs": ({}, {f"{A}.old_logprobs": "trainer"}, "weights"),
    "correction": ({}, {f"{A}.rollout_correction.level": "token"}, "weights"),
    "ppo_epochs": ({}, {f"{T}.ppo_epochs": 2}, "weights"),
    "mini_batch_num": ({}, {f"{T}.mini_batch_num": 2}, "weights"),
    "max_tokens_per_micro_batch": ({}, {f"{T}.max_tokens_per_micro_batch": 60}, "micro-batches"),
    "batch_layout": ({}, {f"{T}.batch_layout": "padded"}, "layout"),
    "activation_checkpointing": (
        {},
        {f"{T}.fsdp_config.activation_checkpointing": True},
        "passes of a layer",
    ),
    "lora": ({}, LORA, "names"),
}


def policy_of(given):
    tokenizer: Any = SimpleNamespace(chat_template="", get_added_vocab=dict)
    loaded = LoadedModel(tiny_model(), tokenizer, "tiny")
    return assembly.make_learner(config_of(PLAIN | given), loaded).policy


@functools.cache
def told(overrides):
    """What two updates make of a policy. Most rows compare with the same one."""
    policy = policy_of(json.loads(overrides))
    parts: list[float] = []  # one for each micro-batch, and one for the optimizer's step
    passes: list[str] = []
    mlp = next(m for n, m in policy.model.named_modules() if n.endswith("layers.0.mlp"))
    mlp.up_proj.register_forward_hook(lambda *_: passes.append("up"))
    for _ in range(2):
        policy.update(SAMPLES, on_progress=parts.append)
    tensors = policy.state_dict().tensors
    return {
        "weights": {n: t for n, t in tensors.items() if not n.startswith("optimizer.")},
        "moments": {n: t for n, t in tensors.items() if n.endswith("exp_avg_sq")},
        "names": sorted(tensors),
        "micro-batches": len(parts),
        "layout": type(policy.layout).__name__,
        "passes of a layer": len(passes),
        "has a reference": policy.reference is not None,
    }


def is_same(one, other):
    if not isinstance(one, dict):
        return one == other
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_changes_what_an_update_computes(name):
    given, changed, what = FIELDS[name]
    one, other = (told(json.dumps(overrides)) for overrides in (given, given | changed))
    assert not is_same(one[what], other[what])


def matrices(policy):
    """Those that weight decay is for, by name."""
    spared = ("embed_tokens", "norm", "bias")
    named = policy.model.named_parameters()
    return {n: p.detach().clone() for n, p in named if not any(part in n for part in spared)}


def test_the_first_step_moves_a_weight_by_the_learning_rate():
    policy = policy_of({f"{T}.optim.lr": 0.003})
    before = matrices(policy)
    policy.update(SAMPLES)
    moved = torch.cat([(matrices(policy)[n] - w).abs().flatten() for n, w in before.items()])
    # AdamW divides the first gradient by its own size: lr * g / (|g| + 1e-8).
    assert moved.max().item() == pytest.approx(0.003, rel=1e-3)


def test_weight_decay_takes_its_share_of_a_weight():
    plain, decayed = policy_of({}), policy_of({f"{T}.optim.weight_decay": 0.5})
    before = matrices(plain)
    for policy in (plain, decayed):
        policy.update(SAMPLES)
    less, more = matrices(plain), matrices(decayed)
    for name, weight in before.items():  # lr * weight_decay = 0.01 * 0.5
        assert torch.allclose(less[name] - more[name], 0.005 * weight, atol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_logits_are_divided_by_the_sampling_temperature(temperature):
    policy = policy_of({f"{R}.temperature": temperature})
    one = sample([3, 1, 4, 1, 5], "00111")
    (scores,) = policy.score([one])
    logits = policy.model(torch.tensor([[3, 1, 4, 1, 5]])).logits[0] / temperature
    expected = logits.log_softmax(-1)[[1, 2, 3], [4, 1, 5]].detach().numpy()
    np.testing.assert_allclose(scores[2:], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "advantage", "log_ratio", "is_cut"),
    [
        ({f"{A}.clip_high": 0.28}, 1.0, 0.5, True),  # the ratio is exp(0.5) = 1.65
        ({f"{A}.clip_high": 0.7}, 1.0, 0.5, False),
        ({f"{A}.clip_high": 0.28}, -1.0, 0.5, False),
        ({f"{A}.clip_low": 0.2}, -1.0, 0.5, False),
        ({f"{A}.dual_clip": 1.5}, -1.0, 0.5, True),
        ({f"{A}.dual_clip": 1.8}, -1.0, 0.5, False),
        ({f"{A}.clip_low": 0.2}, -1.0, -0.5, True),  # the ratio is exp(-0.5) = 0.61
        ({f"{A}.clip_low": 0.5}, -1.0, -0.5, False),
        ({f"{A}.clip_low": 0.2}, 1.0, -0.5, False),
    ],
)
def test_a_ratio_beyond_a_bound_teaches_nothing(given, advantage, log_ratio, is_cut):
    policy = policy_of(given)
    ids, mask = [3, 1, 4, 1], "0001"
    (scores,) = policy.score([sample(ids, mask)])
    drawn = sample(ids, mask, advantage=advantage, logprobs=scores[3] - log_ratio)
    before = matrices(policy)
    policy.update([drawn])
    assert is_same(before, matrices(policy)) == is_cut
