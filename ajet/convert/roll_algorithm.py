"""Converts ROLL's algorithm: the estimator with its normalized rewards, the loss, and the
importance weights between sampler and trainer.
"""

from ajet.convert.draft import AGGREGATIONS, Choices, Draft
from ajet.convert.roll_keys import ACTOR, ALGORITHM, CRITIC, TRAINER

NEVER_CLIPS = 1e6
"""A clip range that no value ever reaches; ajet's critic always clips."""
LOSSES = Choices(
    {"ppo": "ppo", "vanilla": "gpg", "topr": "topr", "cispo": "cispo", "tis": "cispo"},
    "this loss is not built",
)
PG_WORKER = "roll.pipeline.agentic.agentic_actor_pg_worker.ActorWorker"
"""The worker that reads pg_variant, whose default is vanilla."""
PPO_WORKERS = (
    "roll.pipeline.agentic.agentic_actor_worker.ActorWorker",
    "roll.pipeline.base_worker.ActorWorker",
)
VARIANTS = ("pg_variant", "actor_train.pg_variant")
WEIGHT_BOUNDS = {
    "cispo": ("cispo_epsilon_low", 0.1, "cispo_epsilon_high", 0.1),
    "tis": ("tis_lower_bound", 0.0, "tis_upper_bound", 1.0),
}
"""The keys of a loss's bounds with ROLL's defaults: distances from 1 for cispo, bounds for tis."""
WEIGHTS = {
    "token": ("token", "product"),
    "segment": ("turn", "geometric_mean"),
    "geometric": ("sequence", "geometric_mean"),
    "sequence": ("sequence", "product"),
}
"""ROLL's weights, each with our level and how the ratios of its tokens are combined."""
GROUPINGS = {
    "traj_group_id": "group", "group": "group", "state": "group", "tags": "tag", "tag": "tag",
    "batch": "batch",
}  # fmt: skip
GIGPO_WEIGHTS = ("episode_reward_weight", "step_reward_weight")


def take_estimator(draft: Draft) -> None:
    name = draft.take("adv_estimator")
    grouping, method = _normalization(draft)
    target = f"{ALGORITHM}.adv_estimator"
    keys = ("adv_estimator", "reward_normalization")
    # ROLL's grpo is the plain return of a reward that is normalized over a group. Without a
    # comparison within groups it compares nothing.
    if name == "grpo" and (grouping != "group" or method == "identity"):
        name = "reinforce"
    if name == "grpo":
        draft.set(target, "grpo", "adv_estimator")
        draft.set(f"{ALGORITHM}.normalize_std", method == "mean_std", "reward_normalization")
    elif name == "gigpo":
        _gigpo(draft, grouping, method)
    elif name == "step_reinforce":
        draft.set(target, "step_reinforce", "adv_estimator")
        if method == "identity":
            draft.set(f"{ALGORITHM}.step_baseline", "none", "reward_normalization")
        else:
            reason = (
                "ROLL normalizes a step's return over all steps of its set; written as "
                "step_reinforce, which subtracts the others' mean at the same turn"
            )
            draft.refuse("reward_normalization", reason)
    elif name in ("gae", "reinforce"):
        draft.set(target, name, *keys[: 2 if name == "reinforce" else 1])
        if method != "identity":
            section = f"{ALGORITHM}.reward_normalization"
            draft.set(f"{section}.grouping", grouping, "reward_normalization")
            draft.set(f"{section}.method", method, "reward_normalization")
    else:
        names = "gae, reinforce, grpo, gigpo, step_reinforce"
        draft.refuse_choice(target, name, "adv_estimator", f"there are {names}")
    _discounts(draft, name)


def _gigpo(draft: Draft, grouping: str, method: str) -> None:
    draft.set(f"{ALGORITHM}.adv_estimator", "gigpo", "adv_estimator")
    reason = (
        "in ROLL an episode counts once for each of its steps in the mean of its group, and equal "
        "states of different tasks are compared; written as gigpo, where it counts once, and "
        "states are compared within a group"
    )
    draft.refuse("adv_estimator", reason)
    if grouping == "group" and method != "identity":
        draft.set(f"{ALGORITHM}.normalize_std", method == "mean_std", "reward_normalization")
    else:
        draft.refuse("reward_normalization", "gigpo compares an episode with its group here")
    draft.copy_all((name, f"{ALGORITHM}.{name}") for name in GIGPO_WEIGHTS)


def _discounts(draft: Draft, estimator: str) -> None:
    unread = {} if estimator == "gae" else {"lambd": "gae alone reads it"}
    if estimator in ("gigpo", "step_reinforce"):
        draft.copy("step_reward_gamma", f"{ALGORITHM}.step_reward_gamma")
    else:
        keys = ("step_reward_gamma", *GIGPO_WEIGHTS)
        unread |= dict.fromkeys(keys, "gigpo and step_reinforce alone read it")
    draft.copy("gamma", f"{ALGORITHM}.gamma")
    if estimator == "gae":
        draft.copy("lambd", f"{ALGORITHM}.lam")
        draft.copy_all(CRITIC)
        clip = draft.take("value_clip")
        value = NEVER_CLIPS if clip is None else clip
        draft.set(f"{TRAINER}.critic.cliprange_value", value, "value_clip")
    for key, reason in unread.items():
        if draft.has_key(key):
            draft.leave_out(key, reason)


def _normalization(draft: Draft) -> tuple[str, str]:
    """Returns our grouping and ROLL's method; newer names of the settings are translated to the
    older ones."""
    section = draft.section("reward_normalization")
    grouping = GROUPINGS.get(str(section.get("grouping", "batch")), "")
    method = str(section.get("method", "identity"))
    mean, deviation = section.get("norm_mean_type"), section.get("norm_std_type")
    # The newer names win where both are written.
    if mean is not None or deviation is not None:
        if mean is None or (deviation is not None and deviation != mean):
            draft.refuse("reward_normalization", "mean and deviation are of the same episodes")
        grouping = GROUPINGS.get(str(mean or deviation), "")
        method = "mean" if deviation is None else "mean_std"
    if not grouping:
        draft.refuse("reward_normalization", f"grouping is one of {', '.join(GROUPINGS)}")
        return "group", "identity"
    if method == "asym_clip":
        draft.refuse(
            "reward_normalization",
            "asym_clip cuts rewards to -1 and 3; written as mean_std without the cut",
        )
        method = "mean_std"
    if section.get("global_scale_factor") or section.get("global_shift_value"):
        draft.refuse("reward_normalization", "rewards are neither scaled nor shifted")
    return grouping, method


def take_loss(draft: Draft) -> None:
    in_range = draft.take("use_pg_clip_range")
    clip = draft.number("pg_clip")
    low, high = draft.take("pg_clip_low"), draft.take("pg_clip_high")
    pairs = {"clip_low": ("pg_clip_low", low), "clip_high": ("pg_clip_high", high)}
    for name, (key, value) in pairs.items():
        if in_range:
            draft.set(f"{ALGORITHM}.{name}", 0.2 if value is None else value, key)
        elif clip:
            draft.set(f"{ALGORITHM}.{name}", clip, "pg_clip")
    # ROLL computes this bound from the clip range: 1 + 2 * pg_clip.
    if draft.take("dual_clip_loss") and clip:
        draft.set(f"{ALGORITHM}.dual_clip", 1 + 2 * clip, "dual_clip_loss", "pg_clip")
    draft.copy("loss_agg_mode", f"{ALGORITHM}.loss_agg_mode", AGGREGATIONS)
    if draft.take("loss_agg_mode") == "seq-mean-token-sum-norm":
        reason = (
            "ROLL divides by sequence_length alone; written as ajet's, which divides by the number "
            "of episodes too: the gradient is that much smaller"
        )
        draft.refuse("loss_agg_mode", reason)
    # The loss of the actor's class, which counts if no variant is set.
    worker_key = f"{ACTOR}.worker_cls"
    worker = draft.take(worker_key)
    if worker == PG_WORKER and not any(map(draft.has_key, VARIANTS)):
        draft.set(f"{ALGORITHM}.policy_loss", "gpg", worker_key)
    elif worker not in (None, PG_WORKER, *PPO_WORKERS):
        draft.refuse(worker_key, "this class may have another loss")
    for key in VARIANTS:
        draft.copy(key, f"{ALGORITHM}.policy_loss", LOSSES)
        if draft.take(key) == "topr":
            reason = (
                "in ROLL a token is weighted with its own ratio, where its episode's score is not "
                "above 0; written as the paper's, with the episode's where the advantage is below 0"
            )
            draft.refuse(key, reason)
        elif draft.take(key) in WEIGHT_BOUNDS:
            _weight_bounds(draft, draft.take(key))
    _kl_in_reward(draft)


def _weight_bounds(draft: Draft, variant: str) -> None:
    """Converts the bounds of the weights of cispo and tis, which is cispo with other bounds."""
    low_key, low, high_key, high = WEIGHT_BOUNDS[variant]
    low_key, high_key = f"{ACTOR}.{low_key}", f"{ACTOR}.{high_key}"
    low = draft.number(low_key) if draft.has_key(low_key) else low
    high = draft.number(high_key) if draft.has_key(high_key) else high
    # cispo's keys are distances from 1.
    if variant == "tis":
        low, high = 1 - low, high - 1
    draft.set(f"{ALGORITHM}.clip_low", low, low_key)
    draft.set(f"{ALGORITHM}.clip_high", high, high_key)


def _kl_in_reward(draft: Draft) -> None:
    """Converts the KL in the reward, which ROLL only uses with add_token_level_kl."""
    coefficient, target_kl = draft.take("init_kl_coef"), draft.take("target_kl")
    horizon = draft.take("kl_horizon")
    if not draft.take("add_token_level_kl"):
        if draft.has_key("target_kl") and target_kl is not None:
            draft.leave_out("target_kl", "add_token_level_kl is off: no KL is in the reward")
        return
    draft.set(f"{ALGORITHM}.use_kl_in_reward", True, "add_token_level_kl")
    draft.set(f"{ALGORITHM}.kl_ctrl.kl_coef", coefficient, "init_kl_coef")
    if target_kl is not None:
        draft.set(f"{ALGORITHM}.kl_ctrl.type", "adaptive", "target_kl")
        draft.set(f"{ALGORITHM}.kl_ctrl.target_kl", target_kl, "target_kl")
        draft.set(f"{ALGORITHM}.kl_ctrl.horizon", horizon, "kl_horizon")


def take_correction(draft: Draft) -> None:
    """Converts the choice of the old policy, and the importance weights between sampler and
    trainer.

    ROLL computes the old log-probabilities before the update or takes those of the first pass,
    which are the same as long as a step has one mini-batch; with more it does the former. Its
    filters are not converted: bounds belong in `rollout_correction.reject`.
    """
    section = draft.section("train_infer_correction")
    weight = section.get("is_weight") or {}
    target = f"{ALGORITHM}.rollout_correction"
    key, forced = "train_infer_correction", "force_disable_old_logprobs_recompute"
    # Either of ROLL's two ways uses the trainer's probabilities (see above).
    draft.set(f"{ALGORITHM}.old_logprobs", "trainer", "enable_old_logprobs_recompute")
    draft.ignore("enable_old_logprobs_recompute")
    if draft.take(forced):
        updates = draft.result.values.get(f"{TRAINER}.mini_batch_num", 1)
        reason = "ROLL then takes each mini-batch's first pass as old, not that before the update"
        draft.leave_out(forced, reason, algorithm=updates > 1)
    weight_type, upper = str(weight.get("weight_type", "token")), weight.get("upper_bound", 1.2)
    if not weight.get("enabled"):
        draft.set(f"{target}.level", "none", key)
    elif weight_type not in WEIGHTS or upper is None:
        draft.refuse(key, f"a weight is one of {', '.join(WEIGHTS)}, and bounded")
    else:
        level, combine = WEIGHTS[weight_type]
        draft.set(f"{target}.level", level, key)
        draft.set(f"{target}.upper", upper, key)
        if level != "token":
            draft.set(f"{target}.combine", combine, key)
    if any(rule.get("enabled") for rule in section.get("filters") or []):
        draft.refuse(key, "filters are not converted: write bounds in rollout_correction.reject")
