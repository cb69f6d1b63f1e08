"""Converts Trinity-RFT's algorithm: `algorithm_type` names an estimator, a loss and a KL, and a key
for each may name another. The old log-probabilities are the sampler's.
"""

from typing import NamedTuple

from ajet.convert.draft import AGGREGATIONS, BY_SEQUENCE, Choices, Draft
from ajet.convert.trinity_keys import ALGORITHM, CRITIC_KEYS, TRAINER


class Components(NamedTuple):
    """The components of an algorithm type, under Trinity-RFT's names."""

    advantage: str
    loss: str
    kl: str = "k2"


TYPES = {
    "ppo": Components("ppo", "ppo"),
    "grpo": Components("grpo", "ppo"),
    "dapo": Components("grpo", "ppo", "none"),
    "multi_step_grpo": Components("grpo", "ppo"),
    "reinforceplusplus": Components("reinforceplusplus", "ppo"),
    "rloo": Components("rloo", "ppo"),
    "remax": Components("remax", "ppo"),
    "gspo": Components("grpo", "gspo"),
    "cispo": Components("grpo", "cispo"),
    "sapo": Components("grpo", "sapo"),
    "topr": Components("reinforce", "topr"),
    "gigpo": Components("gigpo", "ppo"),
}
ESTIMATORS = {
    "ppo": "gae", "grpo": "grpo", "step_wise_grpo": "grpo", "rloo": "rloo", "remax": "remax",
    "reinforce": "reinforce", "reinforceplusplus": "reinforce_plus_plus", "gigpo": "gigpo",
}  # fmt: skip
LOSSES = ("ppo", "gspo", "cispo", "sapo", "topr")
BOUNDS = {"ppo": (0.2, 0.2), "gspo": (3e-4, 4e-4), "cispo": (1.0, 0.28)}
"""The losses that clip, with Trinity-RFT's defaults of `clip_range_low` and `clip_range_high`."""
DIFFERENCES = {
    "cispo": "Trinity-RFT leaves out tokens that PPO's clip would; ajet's loss trains them too",
    "sapo": "Trinity-RFT multiplies log pi by the gate; ajet takes the gradient of the gate itself",
    "topr": "Trinity-RFT tapers by the ratio of a token; ajet by that of the episode",
}
GIGPO = (
    "Trinity-RFT compares a step with the steps from its state in all tasks; ajet with those of "
    "its group"
)
KL_TYPES = {"k1": "k1", "k2": "k2", "k3": "low_var_kl", "low_var_kl": "low_var_kl"}
LOSS, LOSS_ARGS = "algorithm.policy_loss_fn", "algorithm.policy_loss_fn_args"


def type_key(draft: Draft) -> str:
    """Returns the key of the algorithm type, which early versions have at the top level."""
    key = "algorithm.algorithm_type"
    is_early = draft.has_key("algorithm_type") and not draft.has_key(key)
    return "algorithm_type" if is_early else key


def take_algorithm(draft: Draft) -> None:
    """Converts the type and the keys that replace its components."""
    key = type_key(draft)
    name = draft.take(key)
    if name == "sft":
        draft.set("ajet.kind", "supervised", key)
        draft.ignore("algorithm.repeat_times")
        return
    if name not in TYPES:
        draft.refuse(key, f"not built here; there are {', '.join([*TYPES, 'sft'])}")
        advice = f"there is no {name} here: choose an estimator, and a loss at policy_loss"
        draft.leave_blank(f"{ALGORITHM}.adv_estimator", key=key, advice=advice)
        return
    components, advantage = TYPES[name], "algorithm.advantage_fn"
    target = f"{ALGORITHM}.adv_estimator"
    if draft.take(advantage) is not None:
        draft.copy(advantage, target, Choices(ESTIMATORS, "not built here"))
    else:
        draft.set(target, ESTIMATORS[components.advantage], key)
    estimator = draft.result.values.get(target)
    # Only gae trains a critic.
    if estimator == "gae":
        draft.copy_all(CRITIC_KEYS)
    else:
        draft.ignore("model.critic_model_path")
    if estimator == "gigpo":
        _gigpo(draft, advantage if draft.take(advantage) else key)
    # Without the trainer's own probabilities, nothing is left to correct.
    bypass = "algorithm.bypass_old_logprobs"
    draft.set(f"{ALGORITHM}.old_logprobs", "sampler" if draft.take(bypass) else "trainer", bypass)
    draft.set(f"{ALGORITHM}.rollout_correction.level", "none", bypass)
    _loss(draft, components.loss)
    _kl(draft, components.kl)
    _kl_in_reward(draft)
    coefficient = "algorithm.entropy_loss_fn_args.entropy_coef"
    if draft.take("algorithm.entropy_loss_fn") != "none":
        draft.copy(coefficient, f"{ALGORITHM}.entropy_coef", float)


def _gigpo(draft: Draft, key: str) -> None:
    arguments = "algorithm.advantage_fn_args"
    norm = draft.take(f"{arguments}.fnorm")
    draft.set(f"{ALGORITHM}.normalize_std", norm == "std", f"{arguments}.fnorm")
    for theirs, name in {"omega": "step_reward_weight", "gamma": "step_reward_gamma"}.items():
        value = draft.take(f"{arguments}.{theirs}")
        draft.set(f"{ALGORITHM}.{name}", 1.0 if value is None else value, f"{arguments}.{theirs}")
    draft.refuse(key, GIGPO)


def _loss(draft: Draft, default: str) -> None:
    loss = draft.take(LOSS) or default
    if loss not in LOSSES:
        reason = f"this loss is not built; there are {', '.join(LOSSES)}"
        draft.refuse_choice(f"{ALGORITHM}.policy_loss", loss, LOSS, reason)
        return
    key = LOSS if draft.take(LOSS) else type_key(draft)
    draft.set(f"{ALGORITHM}.policy_loss", loss, key)
    if loss in DIFFERENCES:
        draft.refuse(key, DIFFERENCES[loss])
    both = f"{LOSS_ARGS}.clip_range"
    for side, default_bound in zip(("low", "high"), BOUNDS.get(loss, ()), strict=False):
        sided = f"{LOSS_ARGS}.clip_range_{side}"
        origin = next((name for name in (sided, both) if draft.take(name) is not None), sided)
        bound = draft.take(origin)
        value = float(default_bound if bound is None else bound)
        # A ratio is never negative, so a lower bound of 1 or more bounds nothing.
        draft.set(f"{ALGORITHM}.clip_{side}", min(value, 1.0) if side == "low" else value, origin)
    if loss == "ppo":
        dual = f"{LOSS_ARGS}.clip_ratio_c"
        draft.set(f"{ALGORITHM}.dual_clip", float(draft.number(dual) or 3.0), dual)
    if loss == "sapo":
        for theirs in ("tau_pos", "tau_neg"):
            draft.copy(f"{LOSS_ARGS}.{theirs}", f"{ALGORITHM}.sapo_{theirs}", float)
    _aggregation(draft, BY_SEQUENCE if loss == "gspo" else "token-mean")


def _aggregation(draft: Draft, default: str) -> None:
    """Converts how token losses are averaged; `default` is that of the loss. Trinity-RFT 0.6 puts
    algorithm.loss_agg_mode in place of the mode of policy_loss_fn_args; if these lack one, the
    loss has its default."""
    own, shared = f"{LOSS_ARGS}.loss_agg_mode", "algorithm.loss_agg_mode"
    target = f"{ALGORITHM}.loss_agg_mode"
    others = draft.take(shared) or "token-mean"
    if draft.take(own) is not None:
        draft.copy(own, target, AGGREGATIONS)
    elif draft.take(shared) is not None and not draft.has_key(LOSS_ARGS):
        draft.copy(shared, target, AGGREGATIONS)
    else:
        draft.set(target, default, own)
    mode = draft.result.values.get(target, default)
    if mode != others:
        draft.to_do(
            f"all losses are averaged by {mode} here; Trinity-RFT averages the KL and the entropy "
            f"by {others} ({shared}), and since 0.6 the policy's loss too, unless "
            "policy_loss_fn_args is there without a loss_agg_mode"
        )


def _kl(draft: Draft, default: str) -> None:
    key, arguments = "algorithm.kl_loss_fn", "algorithm.kl_loss_fn_args"
    estimate = draft.take(key) or default
    origin = key if draft.take(key) else type_key(draft)
    coefficient = draft.take(f"{arguments}.kl_coef")
    # A coefficient that is not written has a default above 0.
    is_on = estimate != "none" and coefficient != 0
    draft.set(f"{TRAINER}.use_kl_loss", is_on, origin, f"{arguments}.kl_coef")
    if not is_on:
        return
    if estimate not in KL_TYPES:
        draft.refuse(key, f"this estimate is not built; there are {', '.join(KL_TYPES)}")
    else:
        draft.set(f"{TRAINER}.kl_loss_type", KL_TYPES[estimate], origin)
    if estimate == "k1":
        draft.refuse(key, "it moves nothing on average; ajet's k1 has the gradient of k2")
    value = 0.001 if coefficient is None else float(coefficient)
    draft.set(f"{TRAINER}.kl_loss_coef", value, f"{arguments}.kl_coef")
    if draft.take(f"{arguments}.adaptive"):
        reason = "the coefficient of the KL in the loss stays; that of use_kl_in_reward adapts"
        draft.refuse(f"{arguments}.adaptive", reason)


def _kl_in_reward(draft: Draft) -> None:
    key, arguments = "algorithm.kl_penalty_fn", "algorithm.kl_penalty_fn_args"
    estimate, target = draft.take(key), f"{ALGORITHM}.kl_ctrl"
    if estimate in (None, "none"):
        return
    if estimate != "k1":
        draft.refuse(key, "the KL in the reward is log p - log q: k1")
        return
    draft.set(f"{ALGORITHM}.use_kl_in_reward", True, key)
    draft.set(f"{target}.kl_coef", float(draft.number(f"{arguments}.kl_coef") or 0.001), key)
    if draft.take(f"{arguments}.adaptive"):
        draft.set(f"{target}.type", "adaptive", f"{arguments}.adaptive")
        for theirs in ("target_kl", "horizon"):
            draft.copy(f"{arguments}.{theirs}", f"{target}.{theirs}", float)
