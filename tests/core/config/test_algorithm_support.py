"""Settings of the algorithm that do nothing beside others are said, contradictions refused."""

import pytest

from ajet.core.advantage import ESTIMATORS, EstimatorSettings, estimate
from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from tests.core.advantage.advantage_fixtures import credited

ALGORITHM = "ajet.trainer_common.algorithm"
GROUP_ESTIMATORS = [name for name, row in ESTIMATORS.items() if row.compares_group]


@pytest.fixture
def load(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("ajet:\n  model: {path: m}\n  rollout: {user_workflow: w.py->W}\n")

    def loaded(*overrides):
        return load_config(path, [text.replace("ALG", ALGORITHM) for text in overrides])

    return loaded


REWARDS = "ALG.reward_weights={a: 1}"
ESTIMATOR, LOSS = "ALG.adv_estimator is grpo", "ALG.policy_loss is ppo"


@pytest.mark.parametrize(
    ("override", "reason", "mended"),
    [
        ("ALG.lam=0.9", ESTIMATOR, "ALG.adv_estimator=gae"),
        ("ALG.gamma=0.9", ESTIMATOR, "ALG.adv_estimator=reinforce"),
        ("ALG.step_reward_gamma=0.9", ESTIMATOR, "ALG.adv_estimator=gigpo"),
        ("ajet.trainer_common.critic.lr=0.5", ESTIMATOR, "ALG.adv_estimator=gae"),
        ("ALG.sapo_tau_pos=2.0", LOSS, "ALG.policy_loss=sapo"),
        ("ALG.vespo_k_neg=2.0", LOSS, "ALG.policy_loss=vespo"),
        ("ALG.dppo_max_ratio=2.0", LOSS, "ALG.policy_loss=dppo_tv"),
        ("ALG.cov_share=0.1", LOSS, "ALG.policy_loss=kl_cov"),
        ("ALG.clip_cov_low=2.0", LOSS, "ALG.policy_loss=clip_cov"),
        ("ALG.sapo_tau_neg=2.0", LOSS, "ALG.policy_loss=own.py->loss"),
        ("ALG.pass_k=4", ESTIMATOR, "ALG.adv_estimator=pass_at_k"),
        ("ALG.lam=0.5", ESTIMATOR, "ALG.adv_estimator=own.py->estimator"),
        (
            "ALG.rollout_correction.normalize=True",
            "rollout_correction.level is none",
            "ALG.rollout_correction.level=turn",
        ),
        (
            "ALG.rollout_correction.count_rejected=False",
            "rollout_correction.reject is empty",
            "ALG.rollout_correction.reject={token_k3: 0.5}",
        ),
        ("ALG.kl_ctrl.kl_coef=0.5", "use_kl_in_reward is false", "ALG.use_kl_in_reward=true"),
        (
            "ALG.rollout_correction.upper=3.0",
            "rollout_correction.level is none",
            "ALG.rollout_correction.level=turn",
        ),
        ("ALG.step_baseline=none", ESTIMATOR, "ALG.adv_estimator=step_reinforce"),
        (
            "ALG.rollout_correction.combine=geometric_mean",
            "rollout_correction.level is none",
            "ALG.rollout_correction.level=turn",
        ),
        (
            "ALG.dynamic_sampling.max_rounds=2",
            "dynamic_sampling.enable is false",
            "ALG.dynamic_sampling.enable=true",
        ),
        (
            "ALG.overlong.penalty_factor=2.0",
            "overlong.buffer_len is 0",
            "ALG.overlong.buffer_len=9",
        ),
        (
            "ALG.reward_normalization.method=mean_std",
            "reward_normalization.grouping is none",
            "ALG.reward_normalization.grouping=tag",
        ),
        (
            "ajet.rollout.submit_oversample_multiplier=3.0",
            "ajet.rollout.enable_oversample is false",
            "ajet.rollout.enable_oversample=true",
        ),
        (
            "ajet.trainer_common.optim.min_lr_ratio=0.1",
            "ajet.trainer_common.optim.lr_schedule is constant",
            ["optim.lr_schedule=linear", "total_training_steps=9"],
        ),
    ],
)
def test_a_setting_that_another_one_leaves_without_effect_is_noticed(
    load, override, reason, mended
):
    (notice,) = load(override).notices
    key, _, value = override.replace("ALG", ALGORITHM).partition("=")
    assert notice == f"ignored: {key}={value} ({reason.replace('ALG', ALGORITHM)})"
    mended = [mended] if isinstance(mended, str) else [f"ajet.trainer_common.{m}" for m in mended]
    assert load(override, *mended).notices == []


def test_rewards_that_nobody_compares_are_noticed(load):
    (notice,) = load(REWARDS).notices
    assert notice.startswith(f"ignored: {ALGORITHM}.reward_weights=")
    assert load(REWARDS, "ALG.adv_estimator=gdpo").notices == []


def test_that_there_are_no_weights_is_no_setting_without_effect(load):
    assert load("ALG.rollout_correction.level=none").notices == []


def test_a_coefficient_that_is_not_added_is_noticed(load):
    notices = load("ajet.trainer_common.use_kl_loss=false", "ajet.trainer_common.kl_loss_coef=0.5")
    assert notices.notices == [
        "ignored: ajet.trainer_common.kl_loss_coef=0.5 (ajet.trainer_common.use_kl_loss is false)"
    ]


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["ALG.dynamic_sampling.enable=true", "ajet.rollout.num_repeat=1"], "ALG.dynamic_sampling"),
        (["ajet.rollout.enable_oversample=true", "ajet.rollout.num_repeat=1"], "ajet.rollout"),
        (
            ["ALG.use_kl_in_reward=true", "ALG.kl_ctrl.type=adaptive", "ALG.kl_ctrl.kl_coef=0.0"],
            "ALG.kl_ctrl.kl_coef",
        ),
        (["ALG.old_logprobs=sampler", "ALG.rollout_correction.level=turn"], "ALG.old_logprobs"),
        (["ALG.overlong.buffer_len=20000"], "ALG.overlong.buffer_len"),
        (["ALG.policy_loss=vespo", "ALG.rollout_correction.level=turn"], "ALG.policy_loss"),
        (["ALG.adv_estimator=gdpo"], "ALG.reward_weights"),
        (["ALG.adv_estimator=gdpo", REWARDS, "ALG.reward_clip=1.0"], "ALG.adv_estimator"),
        (["ALG.adv_estimator=pass_at_k", "ALG.pass_k=9"], "ALG.pass_k"),
        (["ALG.policy_loss=clip_cov", "ALG.clip_cov_low=6.0"], "ALG.clip_cov_low"),
        (["ajet.trainer_common.optim.lr_schedule=cosine"], "optim.lr_schedule"),
    ],
)
def test_settings_that_contradict_one_another_are_refused_in_one_line(load, overrides, key):
    with pytest.raises(ConfigError, match="is refused: ") as error:
        load(*overrides)
    assert key.replace("ALG", ALGORITHM) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("estimator", GROUP_ESTIMATORS)
def test_estimators_of_groups_give_a_lone_episode_nothing_and_that_is_noticed(load, estimator):
    rewards = [REWARDS] if estimator == "gdpo" else []
    loaded = load("ajet.rollout.num_repeat=1", f"ALG.adv_estimator={estimator}", *rewards)
    assert "nothing is learnt" in loaded.notices[0]
    groups = [(credited("a", [3.0, 1.0], group="g"),), (credited("b", [1.0], group="h"),)]
    assert not any_signal(estimator, groups)


@pytest.mark.parametrize("estimator", sorted(set(ESTIMATORS) - set(GROUP_ESTIMATORS) - {"gae"}))
def test_the_others_learn_from_lone_episodes(load, estimator):
    notices = load("ajet.rollout.num_repeat=1", f"ALG.adv_estimator={estimator}").notices
    assert notices == []
    episodes = [credited("a", [3.0], baseline=0.0), credited("b", [1.0], baseline=0.0)]
    assert any_signal(estimator, [(each,) for each in episodes])


def test_a_step_that_is_compared_with_nothing_learns_alone(load):
    plain = ["ALG.adv_estimator=step_reinforce", "ALG.step_baseline=none"]
    assert load("ajet.rollout.num_repeat=1", *plain).notices == []


def any_signal(estimator, groups):
    found = estimate(groups, EstimatorSettings(estimator)).advantages
    return any(turn.any() for turns in found.values() for turn in turns)


def test_a_judge_that_compares_answers_is_noticed_beside_remax(load):
    listwise = "ajet.task_judge.judge_protocol=llm_listwise"
    assert "judges alone" in " ".join(load("ALG.adv_estimator=remax", listwise).notices)


def test_a_group_of_one_and_a_policy_that_waits_for_ever_are_noticed(load):
    assert "nothing is learnt" in load("ajet.rollout.num_repeat=1").notices[0]
    assert load("ajet.rollout.num_repeat=1", "ALG.adv_estimator=reinforce").notices == []
    by_group = ["ALG.adv_estimator=reinforce", "ALG.reward_normalization.grouping=group"]
    assert "grouping=group" in load("ajet.rollout.num_repeat=1", *by_group).notices[0]
    waits = load(
        "ALG.adv_estimator=gae",
        "ajet.trainer_common.critic.warmup_steps=5",
        "ajet.trainer_common.total_training_steps=5",
    )
    assert "the policy never learns" in waits.notices[0]
