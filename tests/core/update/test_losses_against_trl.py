from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from loss_fixtures import random_batch

from ajet.core.update.policy import off_policy_tokens
from ajet.core.update.settings import UpdateSettings

LONGEST = 9  # of `random_batch`


@pytest.fixture(scope="module")
def trl_loss():
    """The loss of trl's GRPO trainer on given log-probabilities, and its gradient."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    def compute(batch, loss_type, level, low, high, off_policy_mask=None):
        logprobs_BT = batch.logprobs_BT.clone().requires_grad_()
        ids_BT = torch.zeros_like(batch.mask_BT, dtype=torch.int64)
        itself = SimpleNamespace(
            _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs_BT, logprobs_BT, None),
            aux_loss_enabled=False, top_entropy_quantile=1.0,
            off_policy_mask_threshold=off_policy_mask,
            get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
            get_gamma_weights=GRPOTrainer.get_gamma_weights,
            importance_sampling_level=level, beta=0.0, loss_type=loss_type, epsilon_low=low,
            epsilon_high=high, use_vllm=False, max_completion_length=LONGEST,
            args=SimpleNamespace(
                delta=None, sapo_temperature_pos=1.0, sapo_temperature_neg=1.05,
                steps_per_generation=1, vespo_k_pos=2.0, vespo_lambda_pos=3.0, vespo_k_neg=3.0,
                vespo_lambda_neg=2.0,
            ),
            model=SimpleNamespace(training=True), current_gradient_accumulation_steps=1,
            accelerator=SimpleNamespace(
                num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x
            ),
            _entropy_bonus_enabled=False, _metrics=defaultdict(lambda: defaultdict(list)),
        )  # fmt: skip
        inputs = {
            "prompt_ids": ids_BT[:, :1], "prompt_mask": ids_BT[:, :1], "completion_ids": ids_BT,
            "completion_mask": batch.mask_BT, "advantages": batch.advantages_BT,
            "old_per_token_logps": batch.old_BT, "num_items_in_batch": batch.mask_BT.sum(),
        }  # fmt: skip
        loss = GRPOTrainer._compute_loss(itself, None, inputs)
        return loss, torch.autograd.grad(loss, logprobs_BT)[0]

    return compute


CASES = [
    # ours, its mode, its clip; theirs, its level, its clip
    ("ppo", "seq-mean-token-mean", (0.2, 0.28), "grpo", "token", (0.2, 0.28)),
    ("ppo", "token-mean", (0.2, 0.28), "dapo", "token", (0.2, 0.28)),
    ("ppo", "seq-mean-token-sum-norm", (0.2, 0.28), "dr_grpo", "token", (0.2, 0.28)),
    ("gspo", "seq-mean-token-mean", (0.1, 0.1), "grpo", "sequence", (0.1, 0.1)),
    ("sapo", "seq-mean-token-mean", (0.2, 0.2), "sapo", "token", (0.2, 0.2)),
    # LUSPO is GSPO whose losses are summed over an episode
    ("gspo", "seq-mean-token-sum", (0.1, 0.1), "luspo", "sequence", (0.1, 0.1)),
    ("vespo", "token-mean", (0.2, 0.2), "vespo", "token", (0.2, 0.2)),
    # trl's bound of cispo is the ratio itself, from above alone
    ("cispo", "token-mean", (1.0, 0.28), "cispo", "token", (0.0, 1.28)),
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("name", "mode", "clip", "theirs", "level", "their_clip"), CASES)
def test_losses_and_gradients_are_trls(trl_loss, name, mode, clip, theirs, level, their_clip, seed):
    batch = random_batch(seed, per_row_advantages=True)  # an advantage of trl's is a row's
    settings = UpdateSettings(
        policy_loss=name, loss_agg_mode=mode, clip_low=clip[0], clip_high=clip[1],
        loss_scale_factor=float(LONGEST),
    )  # fmt: skip
    loss, gradient, _ = batch.loss(settings)
    expected_loss, expected_gradient = trl_loss(batch, theirs, level, *their_clip)
    torch.testing.assert_close(loss, expected_loss, rtol=0, atol=1e-6)
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-6)
    assert gradient.abs().max() > 1e-3


@pytest.mark.parametrize("seed", [0, 7, 11])
def test_masked_episodes_are_trls(trl_loss, seed):
    batch = random_batch(seed, per_row_advantages=True)
    settings = UpdateSettings(policy_loss="ppo", loss_agg_mode="seq-mean-token-mean")
    masked_M = torch.from_numpy(off_policy_tokens(batch.mini_batch(), 0.05)).bool()
    advantages = batch.advantages_BT.clone()
    advantages[batch.mask_BT.bool()] *= ~masked_M  # a masked token has no policy loss
    left = replace(batch, advantages_BT=advantages)
    loss, gradient, _ = left.loss(settings)
    expected_loss, expected = trl_loss(batch, "grpo", "token", 0.2, 0.2, off_policy_mask=0.05)
    torch.testing.assert_close(loss, expected_loss, rtol=0, atol=1e-6)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-6)
    episodes = {*batch.mini_batch().episodes_M[masked_M.numpy()].tolist()}
    assert 0 < len(episodes) < len(batch.mask_BT)
