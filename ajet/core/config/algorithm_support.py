"""Finds settings of the algorithm that have no effect, or that contradict other settings.

lam=0.9                             ignored: adv_estimator is grpo
dynamic_sampling, num_repeat=1      refused: no group ever has two rewards that differ
"""

from dataclasses import fields

from ajet.core.advantage import AdvantageOptions
from ajet.core.config.algorithm import AlgorithmConfig
from ajet.core.config.task_reader import DataConfig
from ajet.core.config.tree import AjetSection
from ajet.core.losses import LossSettings

ALGORITHM, OPTIM = "ajet.trainer_common.algorithm", "ajet.trainer_common.optim"


def unread_algorithm_keys(ajet: AjetSection) -> dict[str, str]:
    """Returns keys and sections that nothing reads, each with the setting that is the reason."""
    trainer, rollout = ajet.trainer_common, ajet.rollout
    algorithm = trainer.algorithm
    unread = _unread_in_sections(algorithm, ajet.backbone)
    # An estimator or loss lists the keys that it reads (`reads`); the others are for its siblings.
    for chooser, keys, choice in (
        ("adv_estimator", AdvantageOptions, algorithm.estimator),
        ("policy_loss", LossSettings, algorithm.loss),
    ):
        for field in fields(keys):
            if field.name not in choice.reads:
                unread[f"{ALGORITHM}.{field.name}"] = _setting(algorithm, chooser)
    if not algorithm.estimator.needs_critic:
        unread["ajet.trainer_common.critic"] = _setting(algorithm, "adv_estimator")
    unread |= _unread_by_sampler(ajet.data)
    if not trainer.use_kl_loss:
        for key in ("kl_loss_coef", "kl_loss_type"):
            unread[f"ajet.trainer_common.{key}"] = "ajet.trainer_common.use_kl_loss is false"
    if trainer.optim.lr_schedule == "constant":
        unread[f"{OPTIM}.min_lr_ratio"] = f"{OPTIM}.lr_schedule is constant"
    if not rollout.enable_oversample:
        key = "ajet.rollout.submit_oversample_multiplier"
        unread[key] = "ajet.rollout.enable_oversample is false"
    return unread


def _unread_by_sampler(data: DataConfig) -> dict[str, str]:
    if data.sampler == "uniform":
        return {"ajet.data.curriculum": "ajet.data.sampler is uniform"}
    unread = {"ajet.data.shuffle": "ajet.data.sampler orders the tasks"}
    if data.sampler != "adaptive":
        for key in ("rest", "quotas", "tag_field"):
            unread[f"ajet.data.curriculum.{key}"] = "ajet.data.sampler is a function of your own"
    return unread


def _unread_in_sections(algorithm: AlgorithmConfig, backbone: str) -> dict[str, str]:
    """Returns the keys of sections that are switched off."""
    kl, correction = algorithm.kl_ctrl, algorithm.rollout_correction
    # Without a level there are weights only where tokens can be stale, and then for each token.
    weighs_stale_tokens = backbone == "trinity" and algorithm.weighs_stale_tokens
    is_off = correction.level == "none" or (correction.level is None and not weighs_stale_tokens)
    off: dict[str, str] = {}
    if not algorithm.use_kl_in_reward:
        off["kl_ctrl"] = "use_kl_in_reward is false"
    if kl.type == "fixed":
        off |= dict.fromkeys(("kl_ctrl.target_kl", "kl_ctrl.horizon"), "kl_ctrl.type is fixed")
    if is_off:
        for name in ("mode", "upper", "lower", "combine", "normalize"):
            off[f"rollout_correction.{name}"] = "rollout_correction.level is none"
    else:
        if correction.mode == "truncate":
            off["rollout_correction.lower"] = "rollout_correction.mode is truncate"
        if correction.level in (None, "token"):
            off["rollout_correction.combine"] = "rollout_correction.level is token"
    if not correction.reject:
        off["rollout_correction.count_rejected"] = "rollout_correction.reject is empty"
    if not algorithm.dynamic_sampling.enable:
        off["dynamic_sampling"] = "dynamic_sampling.enable is false"
    if algorithm.overlong.buffer_len == 0:
        off["overlong.penalty_factor"] = "overlong.buffer_len is 0"
    if algorithm.reward_normalization.grouping == "none":
        off["reward_normalization"] = "reward_normalization.grouping is none"
    return {f"{ALGORITHM}.{key}": reason for key, reason in off.items()}


def contradictions(ajet: AjetSection) -> list[tuple[str, str]]:
    """Returns keys that contradict others, each with the reason."""
    algorithm, rollout = ajet.trainer_common.algorithm, ajet.rollout
    kl, buffer_len = algorithm.kl_ctrl, algorithm.overlong.buffer_len
    correction, by_name = algorithm.rollout_correction, algorithm.estimator.compares_named_rewards
    checks = {
        "old_logprobs": (
            algorithm.old_logprobs == "sampler" and correction.level not in (None, "none"),
            f"the weights of rollout_correction.level={correction.level} need the trainer's: set "
            "trainer, or level none",
        ),
        "policy_loss": (
            algorithm.loss.weighs_by_sampler and correction.level not in (None, "none"),
            f"{algorithm.policy_loss} weighs by the policy over the sampler, which contains "
            "rollout_correction's weights: set rollout_correction.level none",
        ),
        "reward_weights": (
            by_name and not algorithm.reward_weights,
            f"adv_estimator {algorithm.adv_estimator} compares these rewards: name them, as "
            "{correct: 1, format: 0.5}",
        ),
        "adv_estimator": (
            by_name and bool(_reward_changes(algorithm)),
            f"{algorithm.adv_estimator} compares reward_weights alone, which "
            f"{_reward_changes(algorithm)} does not change: leave that out",
        ),
        "pass_k": (
            (algorithm.pass_k or 0) > rollout.num_repeat,
            f"a group has ajet.rollout.num_repeat={rollout.num_repeat} episodes",
        ),
        "clip_cov_low": (
            algorithm.clip_cov_low >= algorithm.clip_cov_high,
            "it must be less than clip_cov_high",
        ),
        "dynamic_sampling.enable": (
            algorithm.dynamic_sampling.enable and rollout.num_repeat == 1,
            "no group has two rewards that differ where ajet.rollout.num_repeat is 1",
        ),
        "kl_ctrl.kl_coef": (
            algorithm.use_kl_in_reward and kl.type == "adaptive" and kl.kl_coef == 0,
            "adaptive multiplies the coefficient, and 0 stays 0: begin with a positive one",
        ),
        "overlong.buffer_len": (
            buffer_len > ajet.data.max_response_length,
            f"{buffer_len} tokens before ajet.data.max_response_length="
            f"{ajet.data.max_response_length} is before an episode begins",
        ),
    }
    refusals = [
        (f"{ALGORITHM}.{key}", reason) for key, (is_wrong, reason) in checks.items() if is_wrong
    ]
    if rollout.enable_oversample and rollout.num_repeat == 1:
        reason = "a group's rewards do not vary where ajet.rollout.num_repeat is 1"
        refusals.append(("ajet.rollout.enable_oversample", reason))
    if ajet.trainer_common.optim.lr_schedule != "constant" and (
        ajet.trainer_common.total_training_steps is None
    ):
        reason = "it ends with the run: set ajet.trainer_common.total_training_steps"
        refusals.append((f"{OPTIM}.lr_schedule", reason))
    return refusals


def algorithm_notices(ajet: AjetSection) -> list[str]:
    """Returns a line for each setting that is allowed, but most likely a mistake."""
    trainer, steps = ajet.trainer_common, ajet.trainer_common.total_training_steps
    name, estimator = trainer.algorithm.adv_estimator, trainer.algorithm.estimator
    grouping, warmup = trainer.algorithm.reward_normalization.grouping, trainer.critic.warmup_steps
    notices = []
    if estimator.compares(trainer.algorithm) and ajet.rollout.num_repeat == 1:
        notices.append(
            f"nothing is learnt from rewards: {ALGORITHM}.adv_estimator={name} compares the "
            "members of a group, and ajet.rollout.num_repeat is 1"
        )
    elif grouping == "group" and ajet.rollout.num_repeat == 1:
        notices.append(
            f"nothing is learnt from rewards: {ALGORITHM}.reward_normalization.grouping=group "
            "takes off the mean of a group, and ajet.rollout.num_repeat is 1"
        )
    if estimator.needs_greedy_episode and ajet.task_judge.judge_protocol == "llm_listwise":
        notices.append(
            f"{ALGORITHM}.adv_estimator={name} compares a group with a greedy episode, which "
            "ajet.task_judge.judge_protocol=llm_listwise judges alone, not with the group"
        )
    if estimator.needs_critic and steps is not None and 0 < steps <= warmup:
        notices.append(
            f"the policy never learns: ajet.trainer_common.critic.warmup_steps={warmup} of "
            f"{steps} steps"
        )
    return notices


def _reward_changes(algorithm: AlgorithmConfig) -> str:
    """Returns the settings that change an episode's reward: gdpo's named rewards ignore them."""
    changes = {
        "reward_shaping": algorithm.reward_shaping is not None,
        "overlong.buffer_len": algorithm.overlong.buffer_len > 0,
        "reward_normalization.grouping": algorithm.reward_normalization.grouping != "none",
        "reward_clip": algorithm.reward_clip is not None,
        "use_kl_in_reward": algorithm.use_kl_in_reward,
    }
    return ", ".join(name for name, is_set in changes.items() if is_set)


def _setting(algorithm: AlgorithmConfig, key: str) -> str:
    return f"{ALGORITHM}.{key} is {getattr(algorithm, key)}"
