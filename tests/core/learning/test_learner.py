"""From groups to weights: who is asked for what; a batch that says nothing changes nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ajet.core.advantage import EstimatorSettings
from ajet.core.advantage.kl_controller import AdaptiveKLController, FixedKLController
from ajet.core.errors import CheckpointError
from ajet.core.learning.learner import Learner, LearnerSettings
from ajet.core.trajectory.trajectory import EpisodeStatus, SelectionName
from ajet.core.update.critic import Critic
from ajet.core.update.policy import Policy
from ajet.core.update.settings import CriticSettings, UpdateSettings
from tests.core.record.record_fixtures import episode, group_of, two_turns
from tests.core.update.update_fixtures import tiny_model

TURNS = two_turns(ids=range(10, 20))  # 3 + 2 sampled tokens


def member(number, reward=1.0, group=0, **more):
    return episode(group=group, member=number, reward=reward, turns=TURNS, **more)


def learner(name="grpo", kl=None, kl_in_reward=False, warmup=0, **update):
    settings = UpdateSettings(**{"lr": 1e-2, "keep_reference": kl_in_reward} | update)
    critic = Critic(tiny_model(1), CriticSettings(lr=1e-2)) if name == "gae" else None
    return Learner(
        Policy(tiny_model(), settings),
        critic,
        kl or FixedKLController(0.5),
        LearnerSettings(EstimatorSettings(name), kl_in_reward, warmup),
    )


def learn(one, groups, step=1):
    batch = one.make_batch(groups)
    return batch, one.update(step, batch)


def weights(one):
    return {name: tensor.clone() for name, tensor in one.policy.state_dict().tensors.items()}


def is_same(before, after):
    return all(torch.equal(before[name], after[name]) for name in before)


def test_rewards_that_differ_change_the_weights():
    one = learner()
    before = weights(one)
    batch, metrics = learn(one, [group_of(member(0, 1.0), member(1, 0.0))])
    assert [len(sample) for sample in batch.samples] == [18, 18]
    assert metrics["update/trained_tokens"] == 10 and metrics["advantage/zero_tokens"] == 0
    assert not is_same(before, weights(one))


def test_gradients_that_a_users_file_switched_off_are_on_in_an_update():
    groups = [group_of(member(0, 1.0), member(1, 0.0))]
    usual, off = learner("gae"), learner("gae")
    learn(usual, groups)
    with torch.no_grad():
        learn(off, groups)
    assert is_same(weights(usual), weights(off))


FAILED = {"reward": None, "status": EpisodeStatus.AGENT_ERROR}
ASIDE = group_of(member(0), member(1)).leave_out(SelectionName.DYNAMIC_SAMPLING, "equal")
SILENT = {
    "no group at all": [],
    "every episode failed": [group_of(member(0, **FAILED), member(1, **FAILED))],
    "all rewards equal": [group_of(member(0), member(1)), group_of(member(0, 0.0, group=1))],
    "every group set aside": [
        group_of(member(0), member(1)).leave_out(SelectionName.DYNAMIC_SAMPLING, "equal")
    ],
    "nobody called the model": [group_of(episode(member=0, turns=()), episode(member=1, turns=()))],
}


@pytest.mark.parametrize("groups", SILENT.values(), ids=SILENT)
@pytest.mark.parametrize("name", ["grpo", "rloo", "gigpo", "step_reinforce"])
def test_a_batch_that_says_nothing_leaves_the_weights_as_they_are(name, groups):
    one = learner(name)
    learn(one, [group_of(member(0, 1.0), member(1, 0.0))])  # AdamW has momentum now
    before = weights(one)
    _, metrics = learn(one, groups, step=2)
    assert is_same(before, weights(one))
    assert metrics["update/optimizer_steps"] == 0
    assert all(np.isfinite(list(metrics.values())))


@pytest.mark.parametrize("groups", SILENT.values(), ids=SILENT)
@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus", "remax", "opo"])
def test_a_batch_that_says_nothing_leaves_finite_weights_with_every_estimator(name, groups):
    one = learner(name, AdaptiveKLController(0.5, 0.1, 10), kl_in_reward=True)
    _, metrics = learn(one, groups)
    assert all(torch.isfinite(tensor).all() for tensor in one.state_dict().tensors.values())
    assert all(np.isfinite(list(metrics.values()))), metrics
    if not any(group.valid for group in groups):
        assert metrics["kl_in_reward/kl"] == 0 and one.kl.coef == 0.5


def test_a_group_that_lost_members_renormalises_over_those_that_are_left():
    whole = group_of(member(0, 1.0), member(1, 0.0))
    lost = group_of(member(0, 1.0), member(1, 0.0), member(2, **FAILED))
    found, expected = (learner().make_batch([g]) for g in (lost, whole))
    assert found.advantages.keys() == expected.advantages.keys()
    for name, turns in expected.advantages.items():
        for one, other in zip(turns, found.advantages[name], strict=True):
            np.testing.assert_array_equal(one, other)


def test_the_kl_is_taken_off_the_rewards_and_steers_its_coefficient():
    one = learner("reinforce", AdaptiveKLController(0.5, 0.1, 10), kl_in_reward=True)
    group = group_of(member(0, 1.0), member(1, 0.0))
    batch = one.make_batch([group])
    reference = one.policy.reference_scores(batch.samples)
    sampled = np.array([-0.5, -0.25, -2.0, -0.125, 0.0])
    expected = 0.5 * (sampled - reference[0][[10, 11, 12, 16, 17]])
    # The first episode's returns-to-go: its reward, less the penalties from the token on.
    returns = np.concatenate(batch.advantages["000001-train-0000-00"])
    np.testing.assert_allclose(returns, 1.0 - np.cumsum(expected[::-1])[::-1], rtol=1e-5)
    kl = batch.metrics["kl_in_reward/kl"]
    assert kl == pytest.approx(expected.mean() / 0.5, rel=1e-5) and kl > 0.12
    assert batch.metrics["kl_in_reward/coef"] == 0.5
    assert one.kl.coef == pytest.approx(0.5 * (1 + 0.2 * 2 / 10))  # two episodes, cut to 0.2


def test_a_kl_in_the_reward_leaves_the_references_logprobs_in_the_record():
    one = learner("reinforce", kl_in_reward=True)
    batch, _ = learn(one, [group_of(member(0, 1.0), member(1, 0.0))])
    reference = one.policy.reference_scores(batch.samples)
    rows = batch.tokens.rows["000001-train-0000-00", 0]
    np.testing.assert_array_equal(rows["reference_logprobs"], reference[0][10:13])
    assert np.isfinite(rows["policy_logprobs"]).all()


@pytest.mark.parametrize(("old", "is_zero"), [("trainer", True), ("sampler", False), (None, False)])
def test_the_kl_in_the_reward_is_that_of_the_old_policy_that_is_named(old, is_zero):
    one = learner("reinforce", AdaptiveKLController(0.5, 0.1, 10), kl_in_reward=True,
                  old_logprobs=old)  # fmt: skip
    batch = one.make_batch([group_of(member(0, 1.0), member(1, 0.0))])
    assert (batch.metrics["kl_in_reward/kl"] == pytest.approx(0, abs=1e-6)) == is_zero


def test_the_critic_learns_returns_of_its_own_values_and_the_policy_waits_while_it_warms_up():
    one = learner("gae", warmup=1)
    before = weights(one)
    groups = [group_of(member(0, 1.0), member(1, 0.0))]
    batch, metrics = learn(one, groups, step=1)
    assert [each[17] for each in batch.returns] == [1.0, 0.0]  # of the last token: its reward
    assert metrics["critic/return_mean"] == 0.5 and "update/loss" not in metrics
    assert is_same(before, weights(one))
    batch, metrics = learn(one, groups, step=2)
    assert batch.values[0][[10, 11, 12, 16, 17]].any()
    assert not is_same(before, weights(one)) and "update/loss" in metrics


def test_the_greedy_reward_of_its_group_is_what_remax_takes_off():
    group = replace(group_of(member(0, 1.0), member(1, 0.0)), baseline=0.25)
    batch, _ = learn(learner("remax"), [group])
    ends = [float(batch.advantages[t.episode_id][1][-1]) for t in group.trajectories]
    assert ends == [0.75, -0.25]


def test_state_goes_on_where_it_was():
    groups = [group_of(member(0, 1.0), member(1, 0.0))]

    def made():
        return learner("gae", AdaptiveKLController(0.5, 0.1, 10), kl_in_reward=True)

    whole, first, second = made(), made(), made()
    for step in (1, 2):
        learn(whole, groups, step)
    learn(first, groups, 1)
    second.load_state_dict(*first.state_dict())
    learn(second, groups, 2)
    found, expected = second.state_dict(), whole.state_dict()
    assert is_same(expected.tensors, found.tensors) and expected.state == found.state


def test_a_checkpoint_without_a_critic_is_one_line():
    tensors, state = learner().state_dict()
    with pytest.raises(CheckpointError, match="no critic, which adv_estimator gae needs"):
        learner("gae").load_state_dict(tensors, state)


def test_the_trainers_log_probabilities_are_computed_once_for_kl_and_ratio(monkeypatch):
    one = learner(kl_in_reward=True, old_logprobs="trainer")
    calls, score = [], one.policy.score
    monkeypatch.setattr(one.policy, "score", lambda samples: calls.append(1) or score(samples))
    groups = [group_of(member(0, 1.0), member(1, 0.0))]
    batch, _ = learn(one, groups)
    assert len(calls) == 1
    other = learner(kl_in_reward=True, old_logprobs="trainer")
    found = other.make_batch(groups)
    expected = other.policy.score(found.samples)
    for sample, scored in zip(batch.samples, expected, strict=True):
        np.testing.assert_array_equal(sample.old_logprobs, scored)
