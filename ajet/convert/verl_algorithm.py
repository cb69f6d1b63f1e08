"""Converts verl's algorithm: what an estimator has beyond its name, the policy's loss with its KL,
the old policy, importance weights, rejection, and how tokens are averaged.
"""

import math
from typing import get_args

from ajet.convert.draft import AGGREGATIONS, BY_SEQUENCE, Choices, Draft
from ajet.convert.verl_keys import ACTOR, ALGORITHM, CORRECTION, TRAINER
from ajet.core.config.algorithm import Measure

ESTIMATOR, GAMMA = "algorithm.adv_estimator", "algorithm.gamma"
GIGPO = "algorithm.gigpo"
NORMS = Choices({"mean_norm": False, "mean_std_norm": True}, "gigpo does not scale so")
LOSSES = Choices(
    {
        "vanilla": "ppo", "gspo": "gspo", "cispo": "cispo", "gpg": "gpg", "sapo": "sapo",
        "geo_mean": "gmpo", "dppo_tv": "dppo_tv", "dppo_kl": "dppo_kl", "clip_cov": "clip_cov",
        "kl_cov": "kl_cov",
    },
    "this loss is not built",
)  # fmt: skip
COVARIANCE = {
    "clip_cov": {
        "clip_cov_ratio": "cov_share", "clip_cov_lb": "clip_cov_low", "clip_cov_ub": "clip_cov_high"
    },
    "kl_cov": {"kl_cov_ratio": "cov_share", "ppo_kl_coef": "kl_cov_coef"},
}  # fmt: skip
"""Maps a loss to settings that it alone has."""
KL_TYPES = Choices(
    {
        "low_var_kl": "low_var_kl", "k3": "low_var_kl", "mse": "k2", "k2": "k2", "mse+": "k2",
        "k2+": "k2", "low_var_kl+": "low_var_kl+", "k3+": "low_var_kl+", "kl+": "k1", "k1+": "k1",
    },
    "this estimate is not built",
)  # fmt: skip


def take_discount(draft: Draft) -> None:
    """Converts gamma, which verl-agent's gigpo uses between steps, and the settings of gigpo."""
    if draft.take(ESTIMATOR) != "gigpo":
        draft.copy(GAMMA, f"{ALGORITHM}.gamma", float)
        draft.ignore(GIGPO)
        return
    draft.copy(GAMMA, f"{ALGORITHM}.step_reward_gamma", float)
    weight = draft.take(f"{GIGPO}.step_advantage_w")
    target = f"{ALGORITHM}.step_reward_weight"
    draft.set(target, 1.0 if weight is None else float(weight), f"{GIGPO}.step_advantage_w")
    draft.ignore("algorithm.norm_adv_by_std_in_grpo")
    norm = f"{GIGPO}.mode"
    if draft.has_key(norm):
        draft.copy(norm, f"{ALGORITHM}.normalize_std", NORMS)
    else:
        draft.set(f"{ALGORITHM}.normalize_std", False, norm)
    if draft.take(f"{GIGPO}.enable_similarity"):
        draft.refuse(f"{GIGPO}.enable_similarity", "equal states are compared, not similar ones")
    draft.ignore(f"{GIGPO}.similarity_thresh")
    draft.refuse(
        ESTIMATOR,
        "in verl-agent an episode counts once for each of its turns in the mean of its group; "
        "written as gigpo, where it counts once",
    )


def take_rewards_of_gdpo(draft: Draft) -> None:
    """Converts the rewards that gdpo compares: names of values that the reward function returns."""
    keys, weights = "algorithm.gdpo_reward_keys", "algorithm.gdpo_reward_weights"
    names = list(draft.take(keys) or [])
    values = list(draft.take(weights) or [1.0] * len(names))
    if draft.take(ESTIMATOR) != "gdpo":
        draft.ignore(keys, weights)
    elif not names or len(values) != len(names):
        draft.refuse(keys, "gdpo needs names, and a weight for each")
    else:
        pairs = zip(map(str, names), map(float, values), strict=True)
        draft.set(f"{ALGORITHM}.reward_weights", dict(pairs), keys, weights)
        draft.to_do(
            "gdpo's rewards are WorkflowOutput.log_metrics of these names: "
            f"{', '.join(map(str, names))}; a judge can set them"
        )


def take_loss(draft: Draft) -> None:
    """Converts the policy's loss, its old log-probabilities and its importance weights.

    bypass_mode      old is the sampler's
    else             old is the trainer's; rollout_is weighs tokens, sequences or nothing
    """
    bypass = f"{CORRECTION}.bypass_mode"
    is_bypassing = draft.take(bypass)
    draft.set(f"{ALGORITHM}.old_logprobs", "sampler" if is_bypassing else "trainer", bypass)
    loss = f"{ACTOR}.policy_loss.loss_mode"
    name = draft.take(loss)
    if is_bypassing and name in (None, "vanilla", "bypass_mode"):
        _bypass_loss(draft, is_named=name == "bypass_mode")
        _aggregation(draft, None)
        return
    draft.ignore(f"{CORRECTION}.loss_type")  # only the loss bypass_mode reads it
    draft.copy(loss, f"{ALGORITHM}.policy_loss", LOSSES)
    _bounds_of(draft, name or "vanilla")
    _aggregation(draft, name)
    if is_bypassing:
        _bypassed_corrections(draft)
        _unused_weights(draft)
    else:
        _weights(draft)
        _rejection(draft)


def _bounds_of(draft: Draft, loss: str) -> None:
    """Converts the settings that only one loss reads. clip_ratio_c is vanilla's dual clip and the
    largest ratio of dppo."""
    if loss in ("vanilla", "gspo", "cispo"):
        _no_lower_bound(draft)
    if loss.startswith("dppo"):
        draft.copy(f"{ACTOR}.clip_ratio_c", f"{ALGORITHM}.dppo_max_ratio", float)
    _dual_clip(draft, has_one=loss == "vanilla")
    for key, target in COVARIANCE.get(loss, {}).items():
        draft.copy(f"{ACTOR}.policy_loss.{key}", f"{ALGORITHM}.{target}", float)
    if loss in COVARIANCE:
        reason = "verl chooses tokens of a micro-batch, and ajet of a mini-batch"
        draft.refuse(f"{ACTOR}.policy_loss.loss_mode", reason)
    # The settings of the losses that are not used say nothing about this run.
    covariance_keys = [key for keys in COVARIANCE.values() for key in keys]
    draft.ignore(*(f"{ACTOR}.policy_loss.{key}" for key in covariance_keys))


def take_kl_loss(draft: Draft) -> None:
    """Converts the estimator of the KL. The gradient of verl's k1 is that of log pi, whose mean is
    0; ours is that of k2, as in verl's k1+."""
    key, target = f"{ACTOR}.kl_loss_type", f"{TRAINER}.kl_loss_type"
    if draft.take(key) in ("kl", "k1"):
        draft.set(target, "k1", key)
        reason = "verl's k1 moves nothing on average; written as k1 with the gradient of k2 (k1+)"
        draft.leave_out(key, reason, algorithm=bool(draft.take(f"{ACTOR}.use_kl_loss")))
    else:
        draft.copy(key, target, KL_TYPES)


def _aggregation(draft: Draft, loss: str | None) -> None:
    """Converts how token losses are averaged. verl's gspo, sapo and geo_mean ignore the setting,
    except for their KL and entropy."""
    key, target = f"{ACTOR}.loss_agg_mode", f"{ALGORITHM}.loss_agg_mode"
    if loss not in ("gspo", "sapo", "geo_mean"):
        draft.copy(key, target, AGGREGATIONS)
        return
    draft.set(target, BY_SEQUENCE, f"{ACTOR}.policy_loss.loss_mode")
    if draft.take(key) != BY_SEQUENCE:
        reason = f"verl's {loss} takes {BY_SEQUENCE}, and this for KL and entropy alone"
        is_read = draft.take(f"{ACTOR}.use_kl_loss") or draft.number(f"{ACTOR}.entropy_coeff")
        draft.leave_out(key, reason, algorithm=bool(is_read))


def _bypass_loss(draft: Draft, *, is_named: bool) -> None:
    """Converts the loss of the bypass mode: PPO's without weights, or REINFORCE with a weight
    pi / sampler that has no gradient and is cut at its threshold. Per token and cut from above,
    that is cispo without a lower bound. `is_named`: loss_mode says bypass_mode."""
    loss_type, target = draft.take(f"{CORRECTION}.loss_type"), f"{ALGORITHM}.policy_loss"
    level, bound = f"{CORRECTION}.rollout_is", f"{CORRECTION}.rollout_is_threshold"
    # verl writes a range of two bounds as one text, "lower_upper".
    threshold = str(2.0 if draft.take(bound) is None else draft.take(bound))
    _bypassed_corrections(draft)
    _dual_clip(draft, has_one=loss_type != "reinforce")
    if loss_type not in (None, "ppo_clip") and not is_named:
        # The trainer sets loss_mode after its workers have copied their config.
        draft.to_do(
            f"see whether verl trained {loss_type}: it says that loss_type names the loss in "
            f"bypass_mode, but up to 0.9 trains {ACTOR}.policy_loss.loss_mode, unless that is "
            "bypass_mode"
        )
    if loss_type in (None, "ppo_clip"):
        _no_lower_bound(draft)
        draft.set(target, "ppo", f"{CORRECTION}.loss_type")
        _unused_weights(draft)
    elif loss_type == "reinforce" and draft.take(level) is None:
        draft.set(target, "gpg", f"{CORRECTION}.loss_type")
    elif (
        loss_type == "reinforce"
        and draft.take(level) == "token"
        and "_" not in threshold
        and float(threshold) > 1
    ):
        draft.set(target, "cispo", f"{CORRECTION}.loss_type", level)
        draft.set(f"{ALGORITHM}.clip_low", 1.0, level)
        draft.set(f"{ALGORITHM}.clip_high", float(threshold) - 1, bound)
    else:
        reason = "in bypass_mode: ppo_clip, or reinforce with a token's weight cut above 1"
        draft.refuse(f"{CORRECTION}.loss_type", reason)


def _bypassed_corrections(draft: Draft) -> None:
    draft.set(f"{ALGORITHM}.rollout_correction.level", "none", f"{CORRECTION}.bypass_mode")
    if _rejection(draft):
        reason = "in bypass_mode verl measures by the policy of each mini-batch; ajet before them"
        draft.refuse(f"{CORRECTION}.rollout_rs", reason)


def _unused_weights(draft: Draft) -> None:
    level = f"{CORRECTION}.rollout_is"
    if draft.take(level) is not None:
        draft.leave_out(level, "verl weighs nothing in bypass_mode, but for reinforce: a metric")
    draft.ignore(f"{CORRECTION}.rollout_is_threshold", f"{CORRECTION}.rollout_is_batch_normalize")


def _no_lower_bound(draft: Draft) -> None:
    """Converts a clip_ratio_low above 1, as in verl's cispo: a ratio is never below 0."""
    key = f"{ACTOR}.clip_ratio_low"
    if draft.number(key) > 1:
        draft.set(f"{ALGORITHM}.clip_low", 1.0, key)


def _dual_clip(draft: Draft, *, has_one: bool) -> None:
    if has_one:
        draft.copy(f"{ACTOR}.clip_ratio_c", f"{ALGORITHM}.dual_clip", float)
    draft.ignore(f"{ACTOR}.clip_ratio_c")


def _weights(draft: Draft) -> None:
    """Converts the importance weights. A single number is an upper bound; with `lower_upper`,
    tokens outside the range are left out of the loss."""
    target = f"{ALGORITHM}.rollout_correction"
    level, bound = draft.take(f"{CORRECTION}.rollout_is"), f"{CORRECTION}.rollout_is_threshold"
    draft.ignore(bound)
    if level is None:
        draft.set(f"{target}.level", "none", f"{CORRECTION}.rollout_is")
    elif level not in ("token", "sequence"):
        draft.refuse(f"{CORRECTION}.rollout_is", "token or sequence")
    else:
        draft.set(f"{target}.level", level, f"{CORRECTION}.rollout_is")
        # 2.0 is verl's default.
        lower, _, upper = str(draft.take(bound) or 2.0).rpartition("_")
        draft.set(f"{target}.upper", float(upper), bound)
        if lower:
            draft.set(f"{target}.mode", "reject", bound)
            draft.set(f"{target}.lower", float(lower), bound)
        draft.copy(f"{CORRECTION}.rollout_is_batch_normalize", f"{target}.normalize")
    draft.ignore(f"{CORRECTION}.rollout_is_batch_normalize")


def _rejection(draft: Draft) -> bool:
    """Converts rollout_rs: measures separated by commas, with one threshold for all or one each.
    Returns whether anything was converted.

    A threshold of k1 is a range of ratios sampler / trainer; our bounds are their logarithms. A
    single number u stands for 1/u and u. verl takes a rejected token out of every mean.
    """
    key, bound = f"{CORRECTION}.rollout_rs", f"{CORRECTION}.rollout_rs_threshold"
    names = [name.strip() for name in str(draft.take(key) or "").split(",") if name.strip()]
    if not names:
        draft.ignore(key, bound)
        return False
    if draft.take(bound) is None:
        draft.refuse(key, f"verl wants {bound} with it")
        return False
    texts = [text.strip() for text in str(draft.take(bound)).split(",")]
    texts = texts * len(names) if len(texts) == 1 else texts
    if unknown := [name for name in names if name not in get_args(Measure)]:
        draft.refuse(key, f"no measure {unknown[0]}")
        return False
    if len(texts) != len(names):
        draft.refuse(bound, f"verl wants one, or {len(names)}")
        return False
    target = f"{ALGORITHM}.rollout_correction"
    bounds: dict[str, float | list[float]] = {}
    for name, text in zip(names, texts, strict=True):
        lower, _, upper = text.rpartition("_")
        if not name.endswith("k1"):
            bounds[name] = float(text)
        elif lower:
            bounds[name] = [math.log(float(lower)), math.log(float(upper))]
        else:
            bounds[name] = math.log(float(upper))
    draft.set(f"{target}.reject", bounds, key, bound)
    draft.set(f"{target}.count_rejected", False, key)
    return True
