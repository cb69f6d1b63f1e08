"""DPO and KTO: weights by hand, and losses and gradients against trl's trainers."""

import math
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ajet.core.config.kinds import PreferenceConfig
from ajet.core.inference.endpoint import Completion
from ajet.core.learning.preference import Preference, dpo, kto, with_next_prompts
from ajet.core.trajectory.samples import to_samples
from ajet.core.trajectory.trajectory import SelectionName
from ajet.core.trajectory.turn import Turn, TurnNotes
from ajet.core.update.policy import Policy
from ajet.core.update.settings import UpdateSettings
from tests.core.record.record_fixtures import episode, group_of
from tests.core.update.update_fixtures import tiny_model

BETA = 0.5
CHOSEN, REJECTED = "000001-train-0000-00", "000001-train-0000-01"


def given(group, member, reward, prompt, reply):
    completion = Completion(tuple(prompt), tuple(reply), (0.0,) * len(reply), "stop", 0)
    turn = Turn(completion, [], None, {}, notes=TurnNotes(is_given=True))
    return episode(group=group, member=member, reward=reward, turns=(turn,))


def pairs():
    return [
        group_of(
            given(n, 0, 1.0, [1, 2, n + 3], [4, 5 + n, 6]), given(n, 1, 0.0, [1, 2, n + 3], [7, 8])
        )
        for n in range(3)
    ]


def singles():
    """Two good replies and a bad one."""
    return [
        group_of(given(n, 0, float(n != 1), range(1, 4 + n), [10 + n] * (2 + n))) for n in range(3)
    ]


def test_the_weights_of_a_pair_by_hand():
    weighed = dpo([pairs()[0]], {CHOSEN: 1.0, REJECTED: -1.0}, BETA)
    # m = 0.5 * 2 = 1; sigmoid(-1) = 0.268941; the mean is over one pair, the update's over two
    assert weighed.weights == pytest.approx({CHOSEN: 0.268941, REJECTED: -0.268941}, abs=1e-6)
    assert weighed.losses == pytest.approx([math.log(1 + math.exp(-1))])
    assert weighed.metrics == {"margin": 1.0, "accuracy": 1.0, "incomplete_pairs": 0.0}


def test_a_pair_without_one_reply_trains_nothing():
    whole, other = pairs()[:2]
    cut = replace(
        other,
        trajectories=(
            other.trajectories[0].leave_out(SelectionName.OVERLONG, "long"),
            other.trajectories[1],
        ),
    )
    ratios = {t.episode_id: 0.0 for group in (whole, cut) for t in group.valid}
    weighed = dpo([whole, cut], ratios, BETA)
    assert {*weighed.weights} == {CHOSEN, REJECTED}
    assert weighed.metrics["incomplete_pairs"] == 1


def test_the_weights_of_single_replies_by_hand():
    section = PreferenceConfig(loss="kto", beta=BETA, bad_weight=2.0)
    weighed = kto({"a": True, "b": False}, {"a": 3.0, "b": 0.0}, {"a": 1.5, "b": 0.5}, section)
    # kl = 1. a: s = sigmoid(0.5 * 2) = 0.731059, s (1 - s) = 0.196612;
    # b: s = sigmoid(0.5 * 1) = 0.622459, s (1 - s) = 0.235004, twice
    assert weighed.metrics["kl"] == 1.0
    assert weighed.weights == pytest.approx({"a": 0.098306, "b": -0.235004}, abs=1e-6)
    assert weighed.losses == pytest.approx([0.268941, 2 * 0.377541], abs=1e-6)
    assert kto({"a": True}, {"a": 3.0}, {"a": -4.0}, section).metrics["kl"] == 0.0


def test_a_mismatched_reply_stands_after_the_next_rows_prompt():
    samples = with_next_prompts(to_samples(singles()), 8)
    assert [sample.token_ids.tolist() for sample in samples] == [
        [1, 2, 3, 4, 10, 10],
        [1, 2, 3, 4, 5, 11, 11, 11],
        [1, 2, 3, 12, 12, 12, 12],
    ]
    assert [sample.num_trained for sample in samples] == [2, 3, 4]
    assert len(with_next_prompts(to_samples(singles()), 7)) == 2  # one is longer


def policy_and_reference():
    """A policy whose weights are no longer those of its reference."""
    settings = UpdateSettings(
        lr=0.0, grad_clip=0.0, keep_reference=True, loss_agg_mode="seq-mean-token-sum"
    )
    policy = Policy(tiny_model(), settings)
    with torch.no_grad():
        for own, other in zip(policy.model.parameters(), tiny_model(6).parameters(), strict=True):
            own.lerp_(other, 0.1)
    return policy


def found_by_us(groups, section):
    policy = policy_and_reference()
    samples, metrics = Preference(section, policy, 99).with_weights(to_samples(groups), groups)
    policy.update(samples)
    tensors = policy.optimizer.tensors()
    gradient = {n.removesuffix(".exp_avg"): 10 * t for n, t in tensors.items() if "exp_avg" in n}
    return metrics, {n: t for n, t in gradient.items() if not n.endswith("_sq")}


def for_trl(model):
    """`model` as trl calls it: it returns the log-probabilities of labels."""

    def call(input_ids, attention_mask, labels, **_):
        logits = model(input_ids, attention_mask=attention_mask).logits[:, :-1].log_softmax(-1)
        targets = labels[:, 1:]
        found = logits.gather(-1, targets.clamp(min=0)[..., None])[..., 0] * (targets != -100)
        entropy = -(logits.exp() * logits).sum(-1)
        return SimpleNamespace(
            log_probs=found, entropy=entropy, mean_logits=logits.mean(-1), is_top1=targets == 0
        )

    return call


def padded(rows):
    """Rows of a prompt and a reply as trl's collator pads them."""
    length = max(len(prompt) + len(reply) for prompt, reply in rows)
    ids, mask, completion = torch.zeros((3, len(rows), length), dtype=torch.int64)
    for n, (prompt, reply) in enumerate(rows):
        whole = [*prompt, *reply]
        ids[n, : len(whole)] = torch.tensor(whole)
        mask[n, : len(whole)] = 1
        completion[n, len(prompt) : len(whole)] = 1
    return ids, mask, completion


def trainer(model, reference, **more):
    accelerator = SimpleNamespace(
        device="cpu", num_processes=1, gather_for_metrics=lambda x: x, gather=lambda x: x,
        unwrap_model=lambda x: x, autocast=nullcontext, reduce=lambda x, reduction="mean": x,
    )  # fmt: skip
    model.training = True
    return SimpleNamespace(
        model=model, ref_model=for_trl(reference), accelerator=accelerator, beta=BETA,
        aux_loss_enabled=False, precompute_ref_logps=False, ld_alpha=None,
        args=SimpleNamespace(gradient_checkpointing_kwargs=None),
        _metrics=defaultdict(lambda: defaultdict(list)), _total_train_tokens=0,
        _tp_size=1, **more,
    )  # fmt: skip


def assert_same(ours, theirs, model):
    loss, gradient = ours
    assert loss == pytest.approx(theirs.item(), abs=1e-6)
    theirs.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradient[name], parameter.grad, rtol=1e-5, atol=1e-6, msg=name)


def test_the_loss_and_gradient_of_dpo_are_trls(monkeypatch):
    from trl.trainer import dpo_trainer

    metrics, gradient = found_by_us(pairs(), PreferenceConfig(loss="dpo", beta=BETA))
    policy = policy_and_reference()
    episodes = [t for member in (0, 1) for t in (g.trajectories[member] for g in pairs())]
    rows = [(t.turns[0].completion.prompt_ids, t.turns[0].completion.token_ids) for t in episodes]
    ids, mask, completion = padded(rows)
    itself = trainer(
        policy.model, tiny_model(), f_divergence_type="reverse_kl", loss_types=["sigmoid"],
        loss_weights=[1.0], use_weighting=False, label_smoothing=0.0,
    )  # fmt: skip
    inputs = {"input_ids": ids, "attention_mask": mask, "completion_mask": completion}
    monkeypatch.setattr(dpo_trainer, "disable_gradient_checkpointing", lambda *_: nullcontext())
    loss = dpo_trainer.DPOTrainer._compute_loss(itself, for_trl(policy.model), inputs, False)
    assert_same((metrics["preference/loss"], gradient), loss, policy.model)


def test_the_loss_and_gradient_of_kto_are_trls(monkeypatch):
    from trl.trainer import kto_trainer

    section = PreferenceConfig(loss="kto", beta=BETA, good_weight=1.5, bad_weight=0.7)
    metrics, gradient = found_by_us(singles(), section)
    policy = policy_and_reference()
    completions = [g.trajectories[0].turns[0].completion for g in singles()]
    rows = [(c.prompt_ids, c.token_ids) for c in completions]
    replies = [reply for _, reply in rows]
    mismatched = [
        (prompt, reply)
        for (prompt, _), reply in zip(rows, [replies[-1], *replies[:-1]], strict=True)
    ]
    inputs = {"label": torch.tensor([True, False, True])}
    for front, each in (("", rows), ("KL_", mismatched)):
        names = [f"{front}{name}" for name in ("input_ids", "attention_mask", "completion_mask")]
        inputs |= dict(zip(names, padded(each), strict=True))
    itself = trainer(
        policy.model, tiny_model(), calculate_KL=True, loss_type="kto", desirable_weight=1.5,
        undesirable_weight=0.7,
    )  # fmt: skip
    itself._compute_kl_logps = lambda *a: kto_trainer.KTOTrainer._compute_kl_logps(itself, *a)
    monkeypatch.setattr(kto_trainer, "disable_gradient_checkpointing", lambda *_: nullcontext())
    loss = kto_trainer.KTOTrainer._compute_loss(itself, for_trl(policy.model), inputs, False)
    assert metrics["preference/kl"] > 0
    assert_same((metrics["preference/loss"], gradient), loss, policy.model)


def test_before_the_first_step_all_ratios_are_zero():
    policy = Policy(tiny_model(), UpdateSettings(keep_reference=True))
    _, metrics = Preference(PreferenceConfig(), policy, 99).with_weights(
        to_samples(pairs()), pairs()
    )
    assert metrics["preference/loss"] == pytest.approx(math.log(2))
    assert metrics["preference/margin"] == metrics["preference/accuracy"] == 0
    assert metrics["preference/good_reward"] == metrics["preference/bad_reward"] == 0
    assert np.isfinite([*metrics.values()]).all()
