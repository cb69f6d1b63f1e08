"""Converts ROLL's agentic configs.

    rollout_batch_size: 1024, group_size: 8      data.train_batch_size: 128, rollout.num_repeat: 8
    adv_estimator: grpo, method: mean_std        adv_estimator: grpo, normalize_std: true
    custom_envs.FrozenLake: {env_type: …}        environment.custom_envs.FrozenLake (roll_envs.py)
    actor_train.training_args.learning_rate      trainer_common.optim.lr

In ROLL `grpo` is the plain return of a reward that reward_normalization has normalized over a
group. Without reward_normalization it compares nothing, and is converted to reinforce.
"""

from typing import Any

from ajet.convert.draft import Absent, Draft, keys_of
from ajet.convert.roll_envs import take_environments
from ajet.convert.schedule import take_schedule
from ajet.core.config.async_keys import staleness_of_ratio
from ajet.core.config.devices import device_list

TRAINER = "ajet.trainer_common"
ALGORITHM = f"{TRAINER}.algorithm"
ACTOR, ENGINE = "actor_train", "actor_infer"
TRAINING = "actor_train.training_args"
GENERATING = "actor_infer.generating_args"
PARALLEL = "actor_infer.strategy_args.strategy_config.tensor_parallel_size"

DEFAULTS: dict[str, Any] = {
    "seed": 42,
    "max_steps": 500,
    "save_steps": 50,
    "eval_steps": 10,
    "rollout_batch_size": 128,
    "val_batch_size": 128,
    "adv_estimator": "gae",
    "gamma": 1.0,
    "lambd": 0.95,
    "pg_clip": 0.2,
    "loss_agg_mode": "seq-mean-token-mean",
    "use_kl_loss": False,
    "kl_loss_coef": 0.0,
    "init_kl_coef": 0.2,
    "kl_horizon": 10000,
    "whiten_advantages": False,
    "step_reward_gamma": 0.95,
    "max_grad_norm": 1.0,
    f"{TRAINING}.learning_rate": 5e-5,
    f"{TRAINING}.lr_scheduler_type": "linear",
    f"{TRAINING}.per_device_train_batch_size": 8,
    f"{TRAINING}.gradient_accumulation_steps": 1,
    "critic.training_args.learning_rate": 5e-5,
    "train_env_manager.num_env_groups": 128,
    "train_env_manager.group_size": 1,
    "val_env_manager.num_env_groups": 128,
    "val_env_manager.group_size": 1,
}

SAME = {
    "seed": "ajet.seed",
    "exp_name": "ajet.experiment_name",
    "pretrain": "ajet.model.path",
    "max_steps": f"{TRAINER}.total_training_steps",
    "save_steps": f"{TRAINER}.save_freq",
    "eval_steps": f"{TRAINER}.test_freq",
    "ppo_epochs": f"{TRAINER}.ppo_epochs",
    "use_kl_loss": f"{TRAINER}.use_kl_loss",
    "kl_loss_coef": f"{TRAINER}.kl_loss_coef",
    "max_grad_norm": f"{TRAINER}.optim.grad_clip",
    "num_nodes": f"{TRAINER}.nnodes",
    "num_gpus_per_node": f"{TRAINER}.n_gpus_per_node",
    f"{TRAINING}.learning_rate": f"{TRAINER}.optim.lr",
    f"{TRAINING}.weight_decay": f"{TRAINER}.optim.weight_decay",
    f"{TRAINING}.warmup_steps": f"{TRAINER}.optim.warmup_steps",
    "reward_clip": f"{ALGORITHM}.reward_clip",
    "advantage_clip": f"{ALGORITHM}.advantage_clip",
    "whiten_advantages": f"{ALGORITHM}.whiten_advantages",
    "entropy_loss_coef": f"{ALGORITHM}.entropy_coef",
    "render_save_dir": "ajet.environment.render_save_dir",
    "actor_infer.strategy_args.strategy_config.gpu_memory_utilization": (
        "verl.rollout.gpu_memory_utilization"
    ),
}

SAMPLING: dict[str, float] = {"temperature": 0.95, "top_p": 0.7, "top_k": 50}
"""ROLL's defaults of its `generating_args`."""
MANAGERS_SAMPLING = ("train_env_manager.generating_args", "val_env_manager.generating_args")

CRITIC = {
    "reward_pretrain": f"{TRAINER}.critic.path",
    "critic.training_args.learning_rate": f"{TRAINER}.critic.lr",
    "critic.training_args.weight_decay": f"{TRAINER}.critic.weight_decay",
    "critic_warmup": f"{TRAINER}.critic.warmup_steps",
}
NEVER_CLIPS = 1e6
"""A clip range so wide that no value moves that far; ajet's critic always clips."""

LOSSES = {"ppo": "ppo", "vanilla": "gpg", "topr": "topr", "cispo": "cispo", "tis": "cispo"}
PG_WORKER = "roll.pipeline.agentic.agentic_actor_pg_worker.ActorWorker"
"""The worker that reads pg_variant, which is vanilla where nothing is written."""
PPO_WORKERS = (
    "roll.pipeline.agentic.agentic_actor_worker.ActorWorker",
    "roll.pipeline.base_worker.ActorWorker",
)
VARIANTS = ("pg_variant", "actor_train.pg_variant")
WEIGHT_BOUNDS = {
    "cispo": ("cispo_epsilon_low", 0.1, "cispo_epsilon_high", 0.1),
    "tis": ("tis_lower_bound", 0.0, "tis_upper_bound", 1.0),
}
"""The keys of a loss's bounds with ROLL's defaults: distances to 1 of cispo, the bounds of tis."""
AGGREGATIONS = (
    "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
)  # fmt: skip
LENGTHS = (
    "ajet.rollout.max_model_len", "ajet.data.max_prompt_length", "ajet.data.max_response_length"
)  # fmt: skip
WEIGHTS = {
    "token": ("token", "product"),
    "segment": ("turn", "geometric_mean"),
    "geometric": ("sequence", "geometric_mean"),
    "sequence": ("sequence", "product"),
}
"""ROLL's weights, each with our level and how the ratios of its tokens are combined."""
GROUPINGS = {
    "traj_group_id": "group",
    "group": "group",
    "state": "group",
    "tags": "tag",
    "tag": "tag",
    "batch": "batch",
}

GPUS = Absent("the backbone shares out processes and GPUs")
WORKER = (
    "name worker_cls world_size device_mapping num_gpus_per_worker model_update_frequency "
    "infer_batch_size backend_timeout system_envs* max_concurrency use_dynamic_batching_in_* "
    "max_tokens_per_microbatch_in_* sequence_length_round_in_* offload_nccl use_sequence_packing "
    "sequence_packing_args.* logits_in_fp32 apply_loss_scale strategy_args.* data_args.* "
    "model_args.dtype model_args.attn_implementation model_args.flash_attn model_args.model_type "
    "model_args.disable_gradient_checkpointing model_args.model_name_or_path "
    "model_args.ulysses_size model_args.lora_rank model_args.lora_alpha "
    "training_args.dataloader_num_workers training_args.seed training_args.data_seed "
    "training_args.bf16 training_args.fp16 training_args.tf32 training_args.optimizer_backend "
    "training_args.lr_scheduler_kwargs* training_args.num_train_epochs training_args.max_steps "
    "generating_args.max_length generating_args.logprobs generating_args.seed "
    "generating_args.do_sample generating_args.length_penalty generating_args.extra_args*"
)
"""Keys of a worker that say how it is run, not what is computed."""
ABSENT: dict[str, Absent] = {
    "whiten_rewards": Absent("rewards are not whitened token by token", algorithm=True),
    "use_reward_scaling": Absent("rewards have reward_normalization", algorithm=True),
    "use_reward_norm": Absent("rewards have reward_normalization", algorithm=True),
    "add_len_reward": Absent("no reward for lengths", algorithm=True),
    "norm_*_type": Absent("rewards have reward_normalization", algorithm=True),
    "l2": Absent("weight_decay alone", algorithm=True),
    "ratio_type": Absent(
        "the ratio is of a token, or of an episode with gspo", off=("token", None), algorithm=True
    ),
    "kl_penalty": Absent("the KL in the reward is log p - log q", off=("kl", None), algorithm=True),
    "use_token_reward": Absent("a turn has one reward", algorithm=True),
    "*.group_filter_cls": Absent(
        "groups of equal rewards are left out with algorithm.dynamic_sampling",
        off=("roll.pipeline.agentic.agentic_pipeline.GroupFilter", None),
        algorithm=True,
    ),
    "*.topr_*_weight": Absent("topr weighs both signs alike", off=(1, None), algorithm=True),
    "*.tis_*_bound": Absent("only the loss tis has it"),
    "*.cispo_epsilon_*": Absent("only the loss cispo has it"),
    "*.cispo_use_unified_mask": Absent("cispo leaves no token out", algorithm=True),
    f"{TRAINING}.warmup_ratio": Absent("warmup_steps counts steps", algorithm=True),
    "*.repetition_penalty": Absent("tokens are sampled as the model has them", off=(1, None)),
    "*.stop_strings": Absent("a reply ends with the model's own end of turn", algorithm=True),
    "*.include_stop_str_in_output": Absent("a reply ends with the model's own end of turn"),
    "*.num_beams": Absent("tokens are sampled", off=(1, None)),
    "*.num_return_sequences": Absent("ROLL sets it to 1 itself", off=(1, None)),
    "batch_adjust_mode": Absent("a batch need not be divisible, nothing is copied or deleted"),
    "env_monitor*": Absent("an episode has a deadline, rollout.episode_timeout_s"),
    "rollout_mock*": Absent("`ajet replay` runs a recorded episode again"),
    "rollout_dump_dir": Absent("every episode is in the run folder"),
    "*enable_reference": Absent("the starting model is there when a KL is asked for"),
    "partial_gpu_mode": GPUS,
    "*max_ckpt_to_keep": Absent("0 keeps all in ROLL; see max_checkpoints_to_keep"),
    "checkpoint_config*": Absent("checkpoints are in the run folder"),
    "base_dir": Absent("all that a run writes is in its run folder"),
    "logging_dir": Absent("all that a run writes is in its run folder"),
    "logging_steps": Absent("every step is logged"),
    "tracker_kwargs*": Absent("a logger has no settings of its own here"),
    "model_name": Absent("the run folder names the model"),
    "model_download_type": Absent("models are read from disk or the Hub"),
    "system_envs*": Absent("set variables of the environment where you start ajet"),
    "rpc_timeout": GPUS,
    "hydra*": Absent("settings of Hydra's own"),
    "*profiler*": Absent("profiling is not built"),
    "report_length_and_rewards": Absent("both are metrics of every step"),
    "prompt_length": Absent("sequence_length is the limit that counts"),
    "response_length": Absent("sequence_length is the limit that counts"),
    "val_prompt_length": Absent("validation has the limits of training"),
    "val_sequence_length": Absent("validation has the limits of training"),
    "custom_env.*": Absent("no name of custom_envs refers to it"),
    "max_running_requests": GPUS,
    "generate_opt_level": GPUS,
    "is_offload_*": GPUS,
    "is_num_return_sequences_expand": GPUS,
    "is_use_additional_prompts": GPUS,
    "max_additional_running_prompts": GPUS,
    "user_defined_rollout_loop_cls": GPUS,
    "router_args*": GPUS,
    "model_update_buffer_size_mb": GPUS,
    "local_rank": GPUS,
    "deepspeed_*": GPUS,
    "value_clip": Absent("only the critic of gae has it"),
    "reward_pretrain": Absent("adv_estimator has no critic"),
    "critic*": Absent("adv_estimator has no critic"),
    "reference*": Absent("the reference is the starting model, where training is"),
    "reward.*": Absent("an environment rewards its episodes itself; a judge is another model"),
    "*.model_args.lora_dropout": Absent("adapters have no dropout", algorithm=True),
    **keys_of("actor_train", WORKER, GPUS),
    **keys_of("actor_infer", WORKER, GPUS),
    **keys_of("*_env_manager", WORKER, GPUS),
    "*_env_manager.generating_args*": Absent("actor_infer.generating_args takes its place in ROLL"),
    "*_env_manager.llm_proxy*": Absent("the model that is trained plays"),
    "*_env_manager.max_traj_per_env": GPUS,
    "*_env_manager.system_envs*": GPUS,
}


def take(draft: Draft) -> None:
    """Converts every key that has a counterpart."""
    for key, target in SAME.items():
        draft.copy(key, target)
    _run_folder(draft)
    _asynchrony(draft)
    _devices(draft)
    _batches(draft)
    _lengths(draft)
    _estimator(draft)
    _loss(draft)
    _correction(draft)
    _sampling(draft)
    _lora(draft)
    draft.set("ajet.task_reader.type", "environment", "custom_envs")
    take_environments(draft)
    take_schedule(draft, f"{TRAINING}.lr_scheduler_type", "max_steps")


def _asynchrony(draft: Draft) -> None:
    """Converts how many batches are generated ahead."""
    ratio = draft.number("async_generation_ratio")
    if ratio > 0:
        draft.set("trinity.max_staleness", staleness_of_ratio(ratio), "async_generation_ratio")
        draft.to_do("--backbone trinity generates and trains at the same time; others take turns")


def _devices(draft: Draft) -> None:
    """Converts the device mappings; both systems number GPUs over all nodes."""
    trainer = _gpus(draft, f"{ACTOR}.device_mapping", f"{TRAINER}.device_mapping")
    engines = _gpus(draft, f"{ENGINE}.device_mapping", "ajet.rollout.device_mapping")
    for role in ("reference", "critic"):
        key = f"{role}.device_mapping"
        if trainer and device_numbers(draft.take(key)) not in (None, trainer):
            draft.leave_out(key, f"the {role} is where the actor is trained")
    size = draft.number(PARALLEL) or 1
    draft.set("ajet.rollout.tensor_model_parallel_size", size, PARALLEL)
    keys = (f"{ENGINE}.device_mapping", f"{ACTOR}.device_mapping")
    if engines and len(engines) >= size:
        draft.set("ajet.rollout.n_vllm_engine", len(engines) // size, keys[0], PARALLEL)
    if trainer and engines and not set(trainer) & set(engines):
        draft.to_do("actor_train and actor_infer have GPUs of their own: take --backbone trinity")
    elif trainer and engines and draft.number("async_generation_ratio") > 0:
        draft.set("trinity.mode", "colocate", *keys)
    _memory(draft)


def _memory(draft: Draft) -> None:
    """Converts sequence parallelism and activation checkpointing."""
    width = draft.number(f"{ACTOR}.model_args.ulysses_size")
    if width > 1:
        target = f"{TRAINER}.ulysses_sequence_parallel_size"
        draft.set(target, width, f"{ACTOR}.model_args.ulysses_size")
    key = f"{ACTOR}.model_args.disable_gradient_checkpointing"
    if (keeps := draft.take(key)) is not None:
        draft.set(f"{TRAINER}.fsdp_config.activation_checkpointing", not keeps, key)


def _gpus(draft: Draft, key: str, target: str) -> list[int] | None:
    """Copies the key's GPUs to `target` and returns them, or None if the key is absent or cannot be
    read."""
    numbers = device_numbers(draft.take(key))
    if numbers is not None:
        draft.set(target, numbers, key)
    return numbers


def device_numbers(mapping: Any) -> list[int] | None:
    try:
        return None if mapping is None else device_list(mapping)
    except ValueError:
        return None


def _run_folder(draft: Draft) -> None:
    resume = draft.take("resume_from_checkpoint")
    if resume is not None:
        resume_values = {False: "disable", True: "auto"}
        value = resume_values[resume] if isinstance(resume, bool) else str(resume)
        draft.set(f"{TRAINER}.resume", value, "resume_from_checkpoint")
    folder, name = draft.take("output_dir"), draft.take("exp_name")
    if folder is not None and name is not None:
        draft.set("ajet.experiment_dir", f"{folder}/{name}", "output_dir", "exp_name")
    tracker = draft.take("track_with")
    names = {"stdout": "console", "tensorboard": "tensorboard", "wandb": "wandb"}
    if tracker is not None:
        draft.set(f"{TRAINER}.logger", [names.get(tracker, tracker)], "track_with")


def _batches(draft: Draft) -> None:
    """Converts batch sizes: ROLL counts trajectories, ajet counts groups."""
    rows, group = draft.number("rollout_batch_size"), draft.number("train_env_manager.group_size")
    draft.copy("train_env_manager.group_size", "ajet.rollout.num_repeat")
    draft.copy("train_env_manager.group_size_redundancy", "ajet.rollout.group_size_redundancy")
    keys = ("rollout_batch_size", "train_env_manager.group_size")
    draft.set("ajet.data.train_batch_size", max(1, rows // max(1, group)), *keys)
    groups = draft.number("train_env_manager.num_env_groups")
    surplus = draft.number("train_env_manager.group_size_redundancy")
    at_once = "train_env_manager.num_env_groups"
    draft.set("ajet.rollout.max_env_worker", groups * (group + surplus), at_once, keys[1])
    draft.copy("val_env_manager.group_size", f"{TRAINER}.val_pass_n")
    _mini_batches(draft, rows)


def _mini_batches(draft: Draft, rows: int) -> None:
    """Computes the number of mini-batches. An update in ROLL takes a number of rows from each
    device, several times over."""
    keys = [
        f"{TRAINING}.per_device_train_batch_size",
        f"{TRAINING}.gradient_accumulation_steps",
        "actor_train.device_mapping",
    ]
    per_device, steps = draft.number(keys[0]), draft.number(keys[1])
    mapping = draft.take(keys[2])
    numbers = device_numbers(mapping)
    if mapping is not None and numbers is None:
        draft.leave_out(keys[2], "the devices cannot be counted, nor mini_batch_num be found")
        return
    devices = len(numbers) if numbers else 1
    config = "actor_train.strategy_args.strategy_config"
    for name in ("tensor", "pipeline"):
        devices //= draft.number(f"{config}.{name}_model_parallel_size") or 1
    devices //= draft.number(f"{config}.context_parallel_size") or 1
    update = max(1, per_device * steps * max(1, devices))
    draft.set(f"{TRAINER}.mini_batch_num", max(1, -(-rows // update)), *keys)


def _lengths(draft: Draft) -> None:
    """Converts the limit of length; ROLL has one for the whole conversation."""
    tokens = draft.number("sequence_length")
    if not tokens and (response := draft.number("response_length")):
        tokens = (draft.number("prompt_length") or 1024) + response
    if tokens:
        for target in LENGTHS:
            draft.set(target, tokens, "sequence_length", "response_length")


def _estimator(draft: Draft) -> None:
    name = draft.take("adv_estimator")
    grouping, method = _normalization(draft)
    target = f"{ALGORITHM}.adv_estimator"
    keys = ("adv_estimator", "reward_normalization")
    if name == "grpo" and (grouping != "group" or method == "identity"):
        name = "reinforce"
    if name == "grpo":
        draft.set(target, "grpo", "adv_estimator")
        draft.set(f"{ALGORITHM}.normalize_std", method == "mean_std", "reward_normalization")
    elif name == "gigpo":
        _gigpo(draft, grouping, method)
    elif name == "step_reinforce":
        _step_reinforce(draft, method)
    elif name in ("gae", "reinforce"):
        draft.set(target, name, *keys[: 2 if name == "reinforce" else 1])
        if method != "identity":
            section = f"{ALGORITHM}.reward_normalization"
            draft.set(f"{section}.grouping", grouping, "reward_normalization")
            draft.set(f"{section}.method", method, "reward_normalization")
    else:
        known = "gae, reinforce, grpo, gigpo, step_reinforce"
        draft.leave_out("adv_estimator", f"there are {known}", algorithm=True)
    _discounts(draft, name)


def _step_reinforce(draft: Draft, method: str) -> None:
    """Converts the plain return of a step. ROLL's normalization of it compares all steps of a set,
    which is not the mean of the others' at the same turn."""
    draft.set(f"{ALGORITHM}.adv_estimator", "step_reinforce", "adv_estimator")
    if method == "identity":
        draft.set(f"{ALGORITHM}.step_baseline", "none", "reward_normalization")
    else:
        reason = (
            "ROLL normalizes a step's return over all steps of its set; written as step_reinforce, "
            "which subtracts the others' mean at the same turn"
        )
        draft.leave_out("reward_normalization", reason, algorithm=True)


def _gigpo(draft: Draft, grouping: str, method: str) -> None:
    draft.set(f"{ALGORITHM}.adv_estimator", "gigpo", "adv_estimator")
    reason = (
        "in ROLL an episode counts once for each of its steps in the mean of its group, and equal "
        "states of different tasks are compared; written as gigpo, where it counts once, and "
        "states are compared within a group"
    )
    draft.leave_out("adv_estimator", reason, algorithm=True)
    if grouping == "group" and method != "identity":
        draft.set(f"{ALGORITHM}.normalize_std", method == "mean_std", "reward_normalization")
    else:
        reason = "gigpo compares an episode with its group here"
        draft.leave_out("reward_normalization", reason, algorithm=True)
    for name in ("episode_reward_weight", "step_reward_weight"):
        draft.copy(name, f"{ALGORITHM}.{name}")


def _discounts(draft: Draft, estimator: str) -> None:
    by_step = estimator in ("gigpo", "step_reinforce")
    if by_step:
        draft.copy("step_reward_gamma", f"{ALGORITHM}.step_reward_gamma")
    draft.copy("gamma", f"{ALGORITHM}.gamma")
    if estimator == "gae":
        draft.copy("lambd", f"{ALGORITHM}.lam")
        for key, target in CRITIC.items():
            draft.copy(key, target)
        clip = draft.take("value_clip")
        value = NEVER_CLIPS if clip is None else clip
        draft.set(f"{TRAINER}.critic.cliprange_value", value, "value_clip")
    else:
        _unread(draft, "gae alone reads it", "lambd")
    if not by_step:
        reason = "gigpo and step_reinforce alone read it"
        _unread(draft, reason, "step_reward_gamma", "episode_reward_weight", "step_reward_weight")


def _unread(draft: Draft, reason: str, *keys: str) -> None:
    for key in keys:
        if draft.has_key(key):
            draft.leave_out(key, reason)


def _normalization(draft: Draft) -> tuple[str, str]:
    """Returns our grouping and ROLL's method; the newer names of the settings are translated to the
    older ones."""
    section = draft.section("reward_normalization")
    grouping = GROUPINGS.get(str(section.get("grouping", "batch")), "")
    method = str(section.get("method", "identity"))
    mean, deviation = section.get("norm_mean_type"), section.get("norm_std_type")
    if mean is not None or deviation is not None:
        if mean is None or (deviation is not None and deviation != mean):
            reason = "mean and deviation are of the same episodes"
            draft.leave_out("reward_normalization", reason, algorithm=True)
        grouping = GROUPINGS.get(str(mean or deviation), "")
        method = "mean" if deviation is None else "mean_std"
    if not grouping:
        draft.leave_out(
            "reward_normalization", f"grouping is one of {', '.join(GROUPINGS)}", algorithm=True
        )
        return "group", "identity"
    if method == "asym_clip":
        draft.leave_out(
            "reward_normalization",
            "asym_clip cuts rewards to -1 and 3; written as mean_std without the cut",
            algorithm=True,
        )
        method = "mean_std"
    if section.get("global_scale_factor") or section.get("global_shift_value"):
        draft.leave_out(
            "reward_normalization", "rewards are neither scaled nor shifted", algorithm=True
        )
    return grouping, method


def _loss(draft: Draft) -> None:
    in_range = draft.take("use_pg_clip_range")
    clip = draft.number("pg_clip")
    low, high = draft.take("pg_clip_low"), draft.take("pg_clip_high")
    pairs = {"clip_low": ("pg_clip_low", low), "clip_high": ("pg_clip_high", high)}
    for name, (key, value) in pairs.items():
        if in_range:
            draft.set(f"{ALGORITHM}.{name}", 0.2 if value is None else value, key)
        elif clip:
            draft.set(f"{ALGORITHM}.{name}", clip, "pg_clip")
    if draft.take("dual_clip_loss") and clip:
        draft.set(f"{ALGORITHM}.dual_clip", 1 + 2 * clip, "dual_clip_loss", "pg_clip")
    modes = {name: name for name in AGGREGATIONS}
    draft.choose("loss_agg_mode", f"{ALGORITHM}.loss_agg_mode", modes, "no such aggregation")
    if draft.take("loss_agg_mode") == "seq-mean-token-sum-norm":
        reason = (
            "ROLL divides by sequence_length alone; written as ajet's, which divides by the number "
            "of episodes too: the gradient is that much smaller"
        )
        draft.leave_out("loss_agg_mode", reason, algorithm=True)
    _worker(draft)
    for key in VARIANTS:
        draft.choose(key, f"{ALGORITHM}.policy_loss", LOSSES, "this loss is not built")
        if draft.take(key) == "topr":
            reason = (
                "in ROLL a token is weighted with its own ratio, where its episode's score is not "
                "above 0; written as the paper's, with the episode's where the advantage is below 0"
            )
            draft.leave_out(key, reason, algorithm=True)
        elif draft.take(key) in WEIGHT_BOUNDS:
            _weight_bounds(draft, draft.take(key))
    _kl_in_reward(draft)


def _worker(draft: Draft) -> None:
    """Converts the loss that the actor's class computes where no variant is written."""
    key = f"{ACTOR}.worker_cls"
    worker = draft.take(key)
    if worker == PG_WORKER and not any(map(draft.has_key, VARIANTS)):
        draft.set(f"{ALGORITHM}.policy_loss", "gpg", key)
    elif worker not in (None, PG_WORKER, *PPO_WORKERS):
        draft.leave_out(key, "its loss is code of its own", algorithm=True)


def _weight_bounds(draft: Draft, variant: str) -> None:
    """Converts the bounds of the weight of cispo and tis, which is cispo between other bounds."""
    low_key, low, high_key, high = WEIGHT_BOUNDS[variant]
    low_key, high_key = f"{ACTOR}.{low_key}", f"{ACTOR}.{high_key}"
    low = draft.number(low_key) if draft.has_key(low_key) else low
    high = draft.number(high_key) if draft.has_key(high_key) else high
    if variant == "tis":
        low, high = 1 - low, high - 1
    draft.set(f"{ALGORITHM}.clip_low", low, low_key)
    draft.set(f"{ALGORITHM}.clip_high", high, high_key)


def _kl_in_reward(draft: Draft) -> None:
    """Converts the KL in the reward, which ROLL uses with add_token_level_kl alone."""
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


def _correction(draft: Draft) -> None:
    """Converts what the old policy is, and the importance weights between sampler and trainer.

    ROLL computes the old log-probabilities before the update, or takes those of the first pass,
    which are the same as long as a step has one mini-batch; it does the former by itself where a
    step has more. ROLL's filters are not converted: bounds go into `rollout_correction.reject`.
    """
    section = draft.section("train_infer_correction")
    weight = section.get("is_weight") or {}
    target = f"{ALGORITHM}.rollout_correction"
    key, forced = "train_infer_correction", "force_disable_old_logprobs_recompute"
    draft.set(f"{ALGORITHM}.old_logprobs", "trainer", "enable_old_logprobs_recompute")
    draft.ignore("enable_old_logprobs_recompute")
    if draft.take(forced):
        updates = draft.result.values.get(f"{TRAINER}.mini_batch_num", 1)
        reason = "ROLL then takes each mini-batch's first pass as old, not that before the update"
        draft.leave_out(forced, reason, algorithm=updates > 1)
    kind, upper = str(weight.get("weight_type", "token")), weight.get("upper_bound", 1.2)
    if not weight.get("enabled"):
        draft.set(f"{target}.level", "none", key)
    elif kind not in WEIGHTS or upper is None:
        reason = f"a weight is one of {', '.join(WEIGHTS)}, and bounded"
        draft.leave_out(key, reason, algorithm=True)
    else:
        level, combine = WEIGHTS[kind]
        draft.set(f"{target}.level", level, key)
        draft.set(f"{target}.upper", upper, key)
        if level != "token":
            draft.set(f"{target}.combine", combine, key)
    if any(rule.get("enabled") for rule in section.get("filters") or []):
        reason = "filters are not converted: write bounds in rollout_correction.reject"
        draft.leave_out(key, reason, algorithm=True)


def _sampling(draft: Draft) -> None:
    """Converts the sampling: `actor_infer.generating_args` are those of training and validation in
    ROLL. Only without them do the environment managers have their own."""
    training, validation = MANAGERS_SAMPLING
    section = GENERATING if draft.has_key(GENERATING) else training
    for name, default in SAMPLING.items():
        draft.set(f"ajet.rollout.{name}", *_sampled(draft, section, name, default))
        target = f"ajet.rollout.val_kwargs.{name}"
        if section == training and draft.has_key(validation):
            draft.set(target, *_sampled(draft, validation, name, default))
        else:
            draft.set(target, None, f"{section}.{name}")
    key = f"{section}.max_new_tokens"
    draft.copy(key, "ajet.rollout.max_response_length_in_one_turn")
    other = draft.number(f"{validation}.max_new_tokens") if section == training else 0
    if other and other != draft.take(key):
        reason = "replies of validation have the limit of training"
        draft.leave_out(f"{validation}.max_new_tokens", reason)


def _sampled(draft: Draft, section: str, name: str, default: float) -> tuple[Any, str]:
    """Returns a sampling setting of the section, or ROLL's default, and the key that it is from."""
    key = f"{section}.{name}"
    value = draft.take(key)
    return (default if value is None else value), key


def _lora(draft: Draft) -> None:
    section = "actor_train.model_args"
    target = draft.take(f"{section}.lora_target")
    rank, alpha = draft.take(f"{section}.lora_rank"), draft.take(f"{section}.lora_alpha")
    if target is None:
        return
    modules = target if target == "all-linear" or isinstance(target, list) else target.split(",")
    draft.set(f"{TRAINER}.lora.target_modules", modules, f"{section}.lora_target")
    draft.set(f"{TRAINER}.lora.rank", rank or 8, f"{section}.lora_rank")
    draft.set(f"{TRAINER}.lora.alpha", float(alpha or 2 * (rank or 8)), f"{section}.lora_alpha")
