"""A converted config has the gradient of the source's own formula, written out here, in float64.

Each formula is that of the source's documentation. It is compared in the second pass over a batch,
where the policy is no longer the old one: ratios leave their bounds, and the KL to the reference
is not 0.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from ajet.convert import convert, yaml_text
from ajet.core.config import load_config
from ajet.core.model.precision import to_float64
from ajet.core.trajectory.sample import TurnSpan
from ajet.core.update.policy import Policy
from ajet.core.update.settings import UpdateSettings
from tests.core.update.update_fixtures import sample, tiny_model

HORIZON = 12
VERL = f"""
data: {{train_batch_size: 4, max_response_length: {HORIZON}}}
actor_rollout_ref:
  model: {{path: m}}
  actor: {{ppo_mini_batch_size: 4, optim: {{lr: 0.01}}}}
"""
ROLL = """
pretrain: m
sequence_length: 12
actor_infer: {generating_args: {temperature: 1.0, top_p: 1.0, top_k: -1}}
"""
CHATLEARN = """
runtime_args: {num_episode: 3, sample_per_episode: 4, train_global_batch_size: 4}
models:
  policy_trainer: {load: m, optimizer: {lr: 0.01}}
  policy: {num_inference_per_prompt: 1, max_prompt_tokens_length: 8, max_response_tokens_length: 12}
"""
AGENTJET = """
ajet:
  model: {path: m}
  data: {train_batch_size: 4}
  rollout: {user_workflow: workflow.py->W, temperature: 1.0, num_repeat: 1}
  trainer_common: {optim: {lr: 0.01}, kl_loss_coef: 0.5}
"""
MASKS = ["0011011", "00111101", "0010", "00010111"]
SEGMENTS = [[(2, 4), (5, 7)], [(2, 6), (7, 8)], [(2, 3)], [(3, 4), (5, 8)]]
ADVANTAGES = [1.2, -0.7, -1.6, 0.5]


@dataclass
class Batch:
    """What the formulas read: [B, T], with a mask of the trained tokens."""

    logprobs: Tensor  # of the policy, with a gradient
    entropy: Tensor
    trainer: Tensor  # of the policy before the update
    sampler: Tensor
    reference: Tensor
    advantages: Tensor
    mask: Tensor

    def ratio(self, old: Tensor) -> Tensor:
        return (self.logprobs - old).exp()

    def row_mean(self, values: Tensor) -> Tensor:
        mean = (values * self.mask).sum(1, keepdim=True) / self.mask.sum(1, keepdim=True)
        return mean.expand_as(values)

    def segment_mean(self, values: Tensor) -> Tensor:
        """Of each run of trained tokens."""
        found = torch.zeros_like(values)
        for row, segments in enumerate(SEGMENTS):
            for start, stop in segments:
                found[row, start:stop] = values[row, start:stop].mean()
        return found


Formula = Callable[[Batch], Tensor]


# --- the losses of a token, as verl's and ROLL's documentation have them -------------------------


def ppo(b: Batch, old: Tensor, low=0.2, high=0.2, dual=None) -> Tensor:
    ratio, a = b.ratio(old), b.advantages
    loss = torch.maximum(-ratio * a, -ratio.clamp(1 - low, 1 + high) * a)
    return loss if dual is None else torch.where(a < 0, torch.minimum(loss, -dual * a), loss)


def verl_ppo(b: Batch, old: Tensor) -> Tensor:
    return ppo(b, old, dual=3.0)


def weight(b: Batch) -> Tensor:
    return (b.trainer - b.sampler).exp()


def sequence_weight(b: Batch) -> Tensor:
    return ((b.trainer - b.sampler) * b.mask).sum(1, keepdim=True).exp()


def icepop(b: Batch) -> Tensor:
    w = weight(b)
    return torch.where((w >= 0.8) & (w <= 1.25), w, 0.0) * verl_ppo(b, b.trainer)


def kept(b: Batch, keep: Tensor) -> Batch:
    """Without the tokens that are not kept: they leave every mean."""
    return replace(b, mask=b.mask * keep)


def wide_ppo(b: Batch) -> Tensor:
    return ppo(b, b.trainer, 0.9, 9.0, dual=3.0)


def rejected_by_k1(b: Batch) -> Tensor:
    mean = b.row_mean(b.sampler - b.trainer)  # of k1, log sampler - log trainer
    return token_mean(kept(b, (mean >= math.log(0.93)) & (mean <= math.log(1.09))), wide_ppo(b))


def rejected_by_two(b: Batch) -> Tensor:
    d = b.trainer - b.sampler
    worst = torch.where(b.mask > 0, d.exp() - 1 - d, 0.0).amax(1, keepdim=True)
    keep = (0.5 * d.square() <= 0.03) & (worst <= 0.2)
    return token_mean(kept(b, keep), weight(b).clamp(max=2.0) * wide_ppo(b))


def gmpo(b: Batch) -> Tensor:
    sign = b.advantages.sign()
    d = b.logprobs - b.trainer
    clipped = sign * torch.minimum(sign * d, sign * d.clamp(-0.1, 0.1))
    ratio = ((clipped * b.mask).sum(1) / b.mask.sum(1)).exp()
    return -((b.advantages * b.mask).sum(1) / b.mask.sum(1) * ratio).mean()


def dppo_tv(b: Batch) -> Tensor:
    moved = (b.logprobs.exp() - b.trainer.exp()).detach()
    keep = torch.where(b.advantages > 0, moved <= 0.1, moved >= -0.1)
    return -b.advantages * b.ratio(b.trainer).detach().clamp(max=1.1) * b.logprobs * keep


def dppo_kl(b: Batch) -> Tensor:
    old, new = b.trainer.exp(), b.logprobs.detach().exp()
    others = (1 - old) * ((1 - old + 1e-8) / (1 - new + 1e-8)).log()
    near = old * (b.trainer - b.logprobs.detach()) + others <= 0.02
    keep = near | torch.where(b.advantages > 0, new <= old, new >= old)
    return -b.advantages * b.ratio(b.trainer).detach().clamp(max=3.0) * b.logprobs * keep


def weighted_gradient(b: Batch, old: Tensor, low: float, high: float) -> Tensor:
    return -b.ratio(old).detach().clamp(low, high) * b.advantages * b.logprobs


def gspo(b: Batch) -> Tensor:
    mean = b.row_mean(b.logprobs - b.trainer).detach()
    ratio = (mean + b.logprobs - b.logprobs.detach()).exp()
    clipped = ratio.clamp(0.1, 3.5)
    return torch.maximum(-ratio * b.advantages, -clipped * b.advantages)


def sapo(b: Batch) -> Tensor:
    tau = torch.where(b.advantages > 0, 0.8, 1.3)
    return -torch.sigmoid(tau * (b.ratio(b.trainer) - 1)) * 4 / tau * b.advantages


def k3(b: Batch) -> Tensor:
    d = b.reference - b.logprobs
    return (d.exp() - d - 1).clamp(max=10)


def k2(b: Batch) -> Tensor:
    return 0.5 * (b.logprobs - b.reference) ** 2


# --- how they are averaged ------------------------------------------------------------------------


def token_mean(b: Batch, loss: Tensor) -> Tensor:
    return (loss * b.mask).sum() / b.mask.sum()


def seq_mean_token_sum(b: Batch, loss: Tensor) -> Tensor:
    return (loss * b.mask).sum(1).mean()


def seq_mean_token_mean(b: Batch, loss: Tensor) -> Tensor:
    return ((loss * b.mask).sum(1) / b.mask.sum(1)).mean()


def seq_mean_token_sum_norm(b: Batch, loss: Tensor) -> Tensor:
    return seq_mean_token_sum(b, loss) / HORIZON


CORRECTION, ACTOR = "algorithm.rollout_correction", "actor_rollout_ref.actor"
WIDE = [f"{ACTOR}.clip_ratio_low=0.9", f"{ACTOR}.clip_ratio_high=9"]
POLICY_TRAINER = "models.policy_trainer"
BYPASS = f"{CORRECTION}.bypass_mode=true"
REINFORCE = [BYPASS, f"{CORRECTION}.loss_type=reinforce"]
KL = [f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_coef=0.5"]
VERL_CASES: dict[str, tuple[list[str], Formula]] = {
    "default": ([], lambda b: token_mean(b, verl_ppo(b, b.trainer))),
    "bypass": ([BYPASS], lambda b: token_mean(b, verl_ppo(b, b.sampler))),
    "bypass, weights unused": (
        [BYPASS, f"{CORRECTION}.rollout_is=token"],
        lambda b: token_mean(b, verl_ppo(b, b.sampler)),
    ),
    "reinforce": (REINFORCE, lambda b: token_mean(b, -b.advantages * b.logprobs)),
    "reinforce with weights": (
        [*REINFORCE, f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_is_threshold=1.2"],
        lambda b: token_mean(b, weighted_gradient(b, b.sampler, 0.0, 1.2)),
    ),
    "token weights": (
        [f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_is_threshold=1.2"],
        lambda b: token_mean(b, weight(b).clamp(max=1.2) * verl_ppo(b, b.trainer)),
    ),
    "sequence weights": (
        [f"{CORRECTION}.rollout_is=sequence"],
        lambda b: token_mean(b, sequence_weight(b).clamp(max=2.0) * verl_ppo(b, b.trainer)),
    ),
    "weights within bounds": (
        [f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_is_threshold=0.8_1.25"],
        lambda b: token_mean(b, icepop(b)),
    ),
    "normalised weights": (
        [f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_is_batch_normalize=true"],
        lambda b: token_mean(
            b, weight(b).clamp(max=2.0) / token_mean(b, weight(b).clamp(max=2.0))
            * verl_ppo(b, b.trainer)
        ),
    ),
    "episodes rejected": (
        [*WIDE, f"{CORRECTION}.rollout_rs=seq_mean_k1",
         f"{CORRECTION}.rollout_rs_threshold=0.93_1.09"],
        rejected_by_k1,
    ),
    "tokens and episodes rejected, the rest weighted": (
        [*WIDE, f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_rs='token_k2,seq_max_k3'",
         f"{CORRECTION}.rollout_rs_threshold='0.03,0.2'"],
        rejected_by_two,
    ),
    "geo_mean": (
        [f"{ACTOR}.policy_loss.loss_mode=geo_mean", f"{ACTOR}.clip_ratio_low=0.1",
         f"{ACTOR}.clip_ratio_high=0.1"],
        gmpo,
    ),
    "dppo_tv": (
        [f"{ACTOR}.policy_loss.loss_mode=dppo_tv", f"{ACTOR}.clip_ratio_low=0.1",
         f"{ACTOR}.clip_ratio_high=0.1", f"{ACTOR}.clip_ratio_c=1.1"],
        lambda b: token_mean(b, dppo_tv(b)),
    ),
    "dppo_kl": (
        [f"{ACTOR}.policy_loss.loss_mode=dppo_kl", f"{ACTOR}.clip_ratio_low=0.02",
         f"{ACTOR}.clip_ratio_high=0.02"],
        lambda b: token_mean(b, dppo_kl(b)),
    ),
    "clips": (
        [f"{ACTOR}.clip_ratio_low=0.1", f"{ACTOR}.clip_ratio_high=0.3",
         f"{ACTOR}.clip_ratio_c=1.1"],
        lambda b: token_mean(b, ppo(b, b.trainer, 0.1, 0.3, 1.1)),
    ),
    "gspo": (
        [f"{ACTOR}.policy_loss.loss_mode=gspo", f"{ACTOR}.loss_agg_mode=seq-mean-token-mean",
         f"{ACTOR}.clip_ratio_low=0.9", f"{ACTOR}.clip_ratio_high=2.5"],
        lambda b: seq_mean_token_mean(b, gspo(b)),
    ),
    "cispo": (
        [f"{ACTOR}.policy_loss.loss_mode=cispo"],
        lambda b: token_mean(b, weighted_gradient(b, b.trainer, 0.8, 1.2)),
    ),
    "gpg": (
        [f"{ACTOR}.policy_loss.loss_mode=gpg"],
        lambda b: token_mean(b, -b.advantages * b.logprobs),
    ),
    "sapo": (
        [f"{ACTOR}.policy_loss.loss_mode=sapo", f"{ACTOR}.tau_pos=0.8", f"{ACTOR}.tau_neg=1.3"],
        lambda b: seq_mean_token_mean(b, sapo(b)),
    ),
    "token sums": (
        [f"{ACTOR}.loss_agg_mode=seq-mean-token-sum"],
        lambda b: seq_mean_token_sum(b, verl_ppo(b, b.trainer)),
    ),
    "token means": (
        [f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"],
        lambda b: seq_mean_token_mean(b, verl_ppo(b, b.trainer)),
    ),
    "token sums over the horizon": (
        [f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm"],
        lambda b: seq_mean_token_sum_norm(b, verl_ppo(b, b.trainer)),
    ),
    "k3": (KL, lambda b: token_mean(b, verl_ppo(b, b.trainer) + 0.5 * k3(b))),
    "k3+": (
        [*KL, f"{ACTOR}.kl_loss_type=low_var_kl+"],
        lambda b: token_mean(b, verl_ppo(b, b.trainer) + 0.5 * k2(b)),  # the gradient of k2
    ),
    "k1+": (
        [*KL, f"{ACTOR}.kl_loss_type=k1+"],
        lambda b: token_mean(b, verl_ppo(b, b.trainer) + 0.5 * k2(b)),
    ),
    "k2": (
        [*KL, f"{ACTOR}.kl_loss_type=mse"],
        lambda b: token_mean(b, verl_ppo(b, b.trainer) + 0.5 * k2(b)),
    ),
    "entropy": (
        [f"{ACTOR}.entropy_coeff=0.3"],
        lambda b: token_mean(b, verl_ppo(b, b.trainer) - 0.3 * b.entropy),
    ),
}  # fmt: skip


def is_weight(kind: str) -> list[str]:
    return [f"train_infer_correction={{is_weight: {{enabled: true, weight_type: {kind}}}}}"]


def roll_ppo(b: Batch) -> Tensor:
    return ppo(b, b.trainer)


def roll_weighted(log_weight: Callable[[Batch], Tensor]) -> Formula:
    """With ROLL's upper bound of 1.2."""
    return lambda b: seq_mean_token_mean(b, log_weight(b).exp().clamp(max=1.2) * roll_ppo(b))


ROLL_CASES: dict[str, tuple[list[str], Formula]] = {
    "default": ([], lambda b: seq_mean_token_mean(b, roll_ppo(b))),
    "dual clip": (
        ["dual_clip_loss=true", "pg_clip=0.1"],
        lambda b: seq_mean_token_mean(b, ppo(b, b.trainer, 0.1, 0.1, 1.2)),
    ),
    "two clips": (
        ["use_pg_clip_range=true", "pg_clip_low=0.1", "pg_clip_high=0.3"],
        lambda b: seq_mean_token_mean(b, ppo(b, b.trainer, 0.1, 0.3)),
    ),
    "token weights": (is_weight("token"), roll_weighted(lambda b: b.trainer - b.sampler)),
    "segment weights": (
        is_weight("segment"),
        roll_weighted(lambda b: b.segment_mean(b.trainer - b.sampler)),
    ),
    "geometric weights": (
        is_weight("geometric"),
        roll_weighted(lambda b: b.row_mean(b.trainer - b.sampler)),
    ),
    "sequence weights": (
        is_weight("sequence"),
        roll_weighted(lambda b: ((b.trainer - b.sampler) * b.mask).sum(1, keepdim=True)),
    ),
    "token mean": (["loss_agg_mode=token-mean"], lambda b: token_mean(b, roll_ppo(b))),
    "token sums": (
        ["loss_agg_mode=seq-mean-token-sum"],
        lambda b: seq_mean_token_sum(b, roll_ppo(b)),
    ),
    "KL": (
        ["use_kl_loss=true", "kl_loss_coef=0.5"],
        lambda b: seq_mean_token_mean(b, roll_ppo(b) + 0.5 * k3(b)),
    ),
    "entropy": (
        ["entropy_loss_coef=0.3"],
        lambda b: seq_mean_token_mean(b, roll_ppo(b) - 0.3 * b.entropy),
    ),
    "policy gradient": (
        ["actor_train.pg_variant=vanilla"],
        lambda b: seq_mean_token_mean(b, -b.advantages * b.logprobs),
    ),
    "policy gradient's worker": (
        ["actor_train.worker_cls=roll.pipeline.agentic.agentic_actor_pg_worker.ActorWorker"],
        lambda b: seq_mean_token_mean(b, -b.advantages * b.logprobs),
    ),
    "cispo": (
        ["actor_train.pg_variant=cispo", "actor_train.cispo_epsilon_high=0.3"],
        lambda b: seq_mean_token_mean(b, weighted_gradient(b, b.trainer, 0.9, 1.3)),
    ),
    "tis": (
        ["actor_train.pg_variant=tis"],
        lambda b: seq_mean_token_mean(b, weighted_gradient(b, b.trainer, 0.0, 1.0)),
    ),
}
CHATLEARN_CASES: dict[str, tuple[list[str], Formula]] = {
    "default": ([], lambda b: token_mean(b, verl_ppo(b, b.trainer))),
    "clips": (
        [f"{POLICY_TRAINER}.neg_clip_ratio=0.1", f"{POLICY_TRAINER}.pos_clip_ratio=0.3"],
        lambda b: token_mean(b, ppo(b, b.trainer, 0.1, 0.3)),
    ),
    "group sequence policy": (
        [f"{POLICY_TRAINER}.use_group_sequence_policy=true",
         f"{POLICY_TRAINER}.neg_clip_ratio=0.9", f"{POLICY_TRAINER}.pos_clip_ratio=2.5"],
        lambda b: token_mean(b, gspo(b)),
    ),
    "KL and entropy": (
        [f"{POLICY_TRAINER}.kl_coef=0.5", f"{POLICY_TRAINER}.entropy_coef=0.3"],
        lambda b: token_mean(b, verl_ppo(b, b.trainer) + 0.5 * k3(b) - 0.3 * b.entropy),
    ),
}  # fmt: skip
AGENTJET_CASES: dict[str, tuple[list[str], Formula]] = {
    "default": ([], lambda b: token_mean(b, verl_ppo(b, b.trainer) + 0.5 * k3(b))),
    "without KL": (
        ["ajet.trainer_common.use_kl_loss=false"],
        lambda b: token_mean(b, verl_ppo(b, b.trainer)),
    ),
}
SOURCES = (
    ("verl", VERL, VERL_CASES),
    ("roll", ROLL, ROLL_CASES),
    ("chatlearn", CHATLEARN, CHATLEARN_CASES),
    ("agentjet", AGENTJET, AGENTJET_CASES),
)
CASES = [
    pytest.param(system, text, *case, id=f"{system}: {name}")
    for system, text, cases in SOURCES
    for name, case in cases.items()
]


# --- a batch, and what an update makes of it ------------------------------------------------------


def wide_model() -> torch.nn.Module:
    return to_float64(tiny_model())


def episodes():
    """Four episodes of some turns each, by a sampler whose probabilities are a little different."""
    rng = np.random.default_rng(3)
    found = []
    for index, (mask, segments) in enumerate(zip(MASKS, SEGMENTS, strict=True)):
        ids = rng.integers(0, 64, len(mask))
        given = sample(ids, mask, episode=f"e{index}", advantage=ADVANTAGES[index])
        logprobs = score(wide_model(), given)[0].detach().numpy() + rng.normal(0, 0.3, len(mask))
        spans = tuple(TurnSpan(*segment, turn) for turn, segment in enumerate(segments))
        sampled = np.where(given.loss_mask, logprobs, 0).astype(np.float32)
        found.append(replace(given, logprobs=sampled, spans=spans))
    return found


def score(model, given):
    """The log-probability of each token but the first, and the entropy there."""
    ids = torch.from_numpy(given.token_ids)
    logprobs = model(ids[None]).logits[0, :-1].log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    first = torch.zeros(1, dtype=logprobs.dtype)
    return torch.cat([first, logprobs.gather(1, ids[1:, None])[:, 0]]), torch.cat([first, entropy])


def batch_of(model, samples) -> Batch:
    def padded(rows):
        return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)

    def array(name):
        return padded(torch.from_numpy(getattr(each, name)).double() for each in samples)

    own = [score(model, each) for each in samples]
    with torch.no_grad():
        before = padded(score(wide_model(), each)[0] for each in samples)
    return Batch(
        logprobs=padded(each[0] for each in own),
        entropy=padded(each[1] for each in own),
        trainer=before,
        sampler=array("logprobs"),
        reference=before,
        advantages=array("advantages"),
        mask=array("loss_mask"),
    )


def settings_of(system, text, overrides, folder):
    """What a run makes of the converted config, without what the gradient is only scaled by."""
    source = folder / "source.yaml"
    source.write_text(text)
    converted = folder / "converted.yaml"
    converted.write_text(yaml_text(convert(system, source, overrides)))
    found = UpdateSettings.from_config(load_config(converted))
    return replace(
        found, lr=0.01, lr_schedule="constant", warmup_steps=0, grad_clip=0.0, mini_batch_num=1
    )


def updated(settings, samples):
    policy = Policy(wide_model(), settings)
    policy.update(samples)
    ending = ".exp_avg"
    named = policy.optimizer.tensors().items()
    return policy.model, {n.removesuffix(ending): t for n, t in named if n.endswith(ending)}


@pytest.mark.parametrize(("system", "text", "overrides", "formula"), CASES)
def test_the_gradient_is_that_of_the_sources_formula(system, text, overrides, formula, tmp_path):
    settings = settings_of(system, text, overrides, tmp_path)
    assert settings.temperature == 1.0
    samples = episodes()
    halfway, first = updated(replace(settings, ppo_epochs=1), samples)
    _, both = updated(replace(settings, ppo_epochs=2), samples)
    names, weights = zip(*halfway.named_parameters(), strict=True)
    expected = torch.autograd.grad(formula(batch_of(halfway, samples)), weights)
    for name, gradient in zip(names, expected, strict=True):
        found = 10 * (both[name] - 0.9 * first[name])  # of AdamW's first moments
        torch.testing.assert_close(found, gradient, rtol=0, atol=5e-6, msg=name)
    assert max(gradient.abs().max() for gradient in expected) > 1e-2


def test_the_batch_reaches_every_bound():
    """Otherwise a formula without it would have the same gradient."""
    model, _ = updated(UpdateSettings(lr=0.01, old_logprobs="trainer"), samples := episodes())
    batch = batch_of(model, samples)
    trained = batch.mask.bool()
    for ratio in (batch.ratio(batch.trainer)[trained], batch.ratio(batch.sampler)[trained]):
        assert ratio.min() < 0.8 and ratio.max() > 1.3
    weights = weight(batch)[trained]
    assert weights.min() < 0.8 and weights.max() > 1.25
