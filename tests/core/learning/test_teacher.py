"""A teacher's log-probabilities beside the policy's own tokens: `ajet.kind: distillation`."""

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch

from ajet import assembly
from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from ajet.core.learning.teacher import Teacher
from ajet.core.trajectory.samples import to_samples
from ajet.core.trajectory.turn import HINTED
from ajet.core.update.frozen_model import FrozenModel
from ajet.core.update.policy import Policy
from ajet.core.update.settings import UpdateSettings
from tests.core.record.record_fixtures import episode, group_of, two_turns
from tests.core.update.update_fixtures import forked_groups, sample, tiny_model

TENSORS, LARGE = (torch.Tensor, torch.nn.Parameter), 4000
"""Elements of a tensor that counts as weights."""


def policy(seed=0, **settings):
    return Policy(tiny_model(seed), UpdateSettings(**settings))


def num_large_tensors():
    gc.collect()
    tensors = (each for each in gc.get_objects() if type(each) in TENSORS)
    return sum(each.numel() >= LARGE for each in tensors)


def divergence(student, teacher, samples):
    """The mean of log pi - log teacher over the trained tokens."""
    pairs = zip(student.score(samples), teacher.score(samples), samples, strict=True)
    return np.concatenate([(own - its)[s.loss_mask] for own, its, s in pairs]).mean()


def test_the_teachers_scores_are_its_log_probabilities_of_the_policys_tokens():
    samples, teacher = forked_groups(), policy(seed=1)
    scored = Teacher(teacher, reward_weight=0.25).with_scores(samples, [])
    for each, plain, score in zip(scored, samples, teacher.score(samples), strict=True):
        assert each.teacher_logprobs is score or (each.teacher_logprobs == score).all()
        assert (each.stream("kl_teacher") == plain.loss_mask).all()
        assert (each.stream("policy_gradient") == 0.25 * plain.loss_mask).all()


@pytest.mark.parametrize("reward_weight", [0.0, 0.5])
def test_a_policy_that_is_its_own_teacher_learns_from_its_rewards_alone(reward_weight):
    samples = forked_groups()
    own = Teacher(policy(), reward_weight).with_scores(samples, [])
    student = policy(lr=1e-2)
    before = {n: p.clone() for n, p in student.model.named_parameters()}
    metrics = student.update(own)
    assert metrics["kl_teacher"] == pytest.approx(0.0, abs=1e-6)
    moved = max((p - before[n]).abs().max().item() for n, p in student.model.named_parameters())
    assert (metrics["grad_norm"] > 1e-4) == (reward_weight > 0)
    assert moved > 0 or reward_weight == 0


def test_updates_bring_the_policy_nearer_to_the_teacher():
    samples, teacher = forked_groups(), policy(seed=1)
    student = policy(lr=1e-2)
    before = divergence(student, teacher, samples)
    for _ in range(20):
        student.update(Teacher(teacher, 0.0).with_scores(samples, []))
    assert abs(divergence(student, teacher, samples)) < 0.2 * abs(before)


@pytest.fixture
def load(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("ajet: {model: {path: 'embedded:math', device: cpu}, kind: distillation}\n")
    return lambda *overrides: load_config(path, overrides)


def test_the_config_names_the_teacher_and_the_weight_of_the_rewards(load):
    config = load("ajet.distillation.path=embedded:math", "ajet.distillation.reward_weight=0.5")
    learner = assembly.make_learner(config, assembly.load_policy_model(config))
    assert learner.teacher is not None and learner.teacher.reward_weight == 0.5
    names = [n for n, _ in learner.policy.model.named_parameters()]
    weights = dict(learner.teacher.scorer.model.named_parameters())
    own = dict(learner.policy.model.named_parameters())
    assert all(torch.equal(weights[n], own[n]) and weights[n] is not own[n] for n in names)


def test_a_teacher_is_weights_alone_and_scores_as_a_policy_does(load):
    config = load("ajet.distillation.path=embedded:math", "ajet.model.dtype=bfloat16")
    loaded = assembly.load_policy_model(config)
    before = num_large_tensors()
    teacher = assembly.make_teacher(config, loaded, policy()).scorer
    num_weights = sum(p.numel() >= LARGE for p in teacher.model.parameters())
    assert num_large_tensors() - before == num_weights > 0
    assert not any(p.requires_grad for p in teacher.model.parameters())
    frozen = FrozenModel(tiny_model(1), UpdateSettings(temperature=0.7))
    samples = forked_groups()
    expected = policy(seed=1, temperature=0.7).score(samples)
    assert all(map(np.array_equal, frozen.score(samples), expected))


def test_distillation_without_a_teacher_is_one_line(load):
    with pytest.raises(ConfigError, match=r"path is refused: .* name one teacher, by"):
        load()


def test_a_policy_teaches_itself_only_what_it_is_shown(load):
    with pytest.raises(ConfigError, match=r"distillation\.hint is refused: .* give a hint"):
        load("ajet.distillation.own_weights=true")
    config = load("ajet.distillation.own_weights=true", "ajet.distillation.hint=It is {answer}.")
    learner = assembly.make_learner(config, assembly.load_policy_model(config))
    assert learner.teacher is not None and learner.teacher.scorer is learner.policy
    assert learner.teacher.is_shown_hints


def hinted_group(hinted_prompt):
    """An episode of two turns, whose first prompt is 10 ids, or `hinted_prompt` to its teacher."""
    first, second = two_turns(ids=range(10, 20))
    first = replace(first, notes={HINTED: hinted_prompt})
    return group_of(episode(turns=(first, second)))


@pytest.mark.parametrize("hinted_prompt", [list(range(10, 20)), [10, 60, 61, *range(11, 20)]])
def test_a_policy_scores_its_own_replies_after_the_hint_and_moves_towards_what_it_says(
    hinted_prompt,
):
    student, group = policy(lr=1e-2), hinted_group(hinted_prompt)
    zeros = {group.trajectories[0].episode_id: [np.zeros(3, np.float32), np.zeros(2, np.float32)]}
    [plain] = to_samples([group], zeros)
    replies = [7, 8, 9, 50, 51, 52, 5, 2]
    by_hand = sample([*hinted_prompt, *replies], "0" * len(hinted_prompt) + "11100011")
    [expected] = student.score([by_hand])
    teacher = Teacher(student, 0.0, is_shown_hints=True)
    [taught] = teacher.with_scores([plain], [group])
    assert taught.token_ids is plain.token_ids
    assert taught.teacher_logprobs[10:].tolist() == expected[len(hinted_prompt) :].tolist()
    assert not taught.teacher_logprobs[:10].any()
    [own] = student.score([plain])
    distance = float((own - taught.teacher_logprobs)[plain.loss_mask].mean())
    metrics = student.update([taught])
    assert metrics["kl_teacher"] == pytest.approx(distance, abs=1e-6)
    is_told_something = hinted_prompt != list(range(10, 20))
    assert (abs(distance) > 1e-3, metrics["grad_norm"] > 1e-3) == (is_told_something,) * 2


def test_a_teacher_with_other_tokens_is_one_line(load):
    config = load("ajet.distillation.path=embedded:frozen_lake")
    with pytest.raises(ConfigError, match=r"ajet\.distillation\.path: the tokenizer of 'embedded"):
        assembly.make_learner(config, assembly.load_policy_model(config))
