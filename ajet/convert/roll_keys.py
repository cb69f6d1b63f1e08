"""Tables of ROLL's keys: the keys of ajet that mean the same, ROLL's defaults, and keys without a
counterpart, each with the reason. Other keys are converted in roll.py, roll_algorithm.py and
roll_envs.py.
"""

from operator import not_
from typing import Any

from ajet.convert.draft import Absent, Default, Row, defaults_of, keys_of, refused, resume_mode

TRAINER = "ajet.trainer_common"
ALGORITHM = f"{TRAINER}.algorithm"
ACTOR, ENGINE = "actor_train", "actor_infer"
TRAINING = "actor_train.training_args"
GENERATING = "actor_infer.generating_args"
PARALLEL = "actor_infer.strategy_args.strategy_config.tensor_parallel_size"

TRACKERS = {"stdout": "console"}


def _resume(value: Any) -> str:
    """Returns our `resume`; besides true and false, ROLL takes a checkpoint."""
    return resume_mode(value) if isinstance(value, bool) else str(value)


KEYS: tuple[Row, ...] = (
    ("seed", "ajet.seed", Default(42)),
    ("exp_name", "ajet.experiment_name"),
    ("pretrain", "ajet.model.path"),
    ("resume_from_checkpoint", f"{TRAINER}.resume", _resume),
    ("track_with", f"{TRAINER}.logger", lambda name: [TRACKERS.get(name, name)]),
    ("max_steps", f"{TRAINER}.total_training_steps", Default(500)),
    ("save_steps", f"{TRAINER}.save_freq", Default(50)),
    ("eval_steps", f"{TRAINER}.test_freq", Default(10)),
    ("ppo_epochs", f"{TRAINER}.ppo_epochs"),
    ("use_kl_loss", f"{TRAINER}.use_kl_loss", Default(False)),
    ("kl_loss_coef", f"{TRAINER}.kl_loss_coef", Default(0.0)),
    ("max_grad_norm", f"{TRAINER}.optim.grad_clip", Default(1.0)),
    ("num_nodes", f"{TRAINER}.nnodes"),
    ("num_gpus_per_node", f"{TRAINER}.n_gpus_per_node"),
    (f"{TRAINING}.learning_rate", f"{TRAINER}.optim.lr", Default(5e-5)),
    (f"{TRAINING}.weight_decay", f"{TRAINER}.optim.weight_decay"),
    (f"{TRAINING}.warmup_steps", f"{TRAINER}.optim.warmup_steps"),
    ("reward_clip", f"{ALGORITHM}.reward_clip"),
    ("advantage_clip", f"{ALGORITHM}.advantage_clip"),
    ("whiten_advantages", f"{ALGORITHM}.whiten_advantages", Default(False)),
    ("entropy_loss_coef", f"{ALGORITHM}.entropy_coef"),
    ("render_save_dir", "ajet.environment.render_save_dir"),
    ("train_env_manager.group_size", "ajet.rollout.num_repeat", Default(1)),
    ("train_env_manager.group_size_redundancy", "ajet.rollout.group_size_redundancy"),
    ("val_env_manager.group_size", f"{TRAINER}.val_pass_n", Default(1)),
    (
        "actor_train.model_args.disable_gradient_checkpointing",
        f"{TRAINER}.fsdp_config.activation_checkpointing",
        not_,
    ),
    (
        "actor_infer.strategy_args.strategy_config.gpu_memory_utilization",
        "verl.rollout.gpu_memory_utilization",
    ),
)

CRITIC: tuple[Row, ...] = (
    ("reward_pretrain", f"{TRAINER}.critic.path"),
    ("critic.training_args.learning_rate", f"{TRAINER}.critic.lr", Default(5e-5)),
    ("critic.training_args.weight_decay", f"{TRAINER}.critic.weight_decay"),
    ("critic_warmup", f"{TRAINER}.critic.warmup_steps"),
)

DEFAULTS: dict[str, Any] = defaults_of(KEYS, CRITIC) | {
    "rollout_batch_size": 128,
    "val_batch_size": 128,
    "adv_estimator": "gae",
    "gamma": 1.0,
    "lambd": 0.95,
    "pg_clip": 0.2,
    "loss_agg_mode": "seq-mean-token-mean",
    "init_kl_coef": 0.2,
    "kl_horizon": 10000,
    "step_reward_gamma": 0.95,
    f"{TRAINING}.lr_scheduler_type": "linear",
    f"{TRAINING}.per_device_train_batch_size": 8,
    f"{TRAINING}.gradient_accumulation_steps": 1,
    "train_env_manager.num_env_groups": 128,
    "val_env_manager.num_env_groups": 128,
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
"""Keys of a worker that decide how it runs, not what is computed."""

ABSENT: dict[str, Absent] = {
    "whiten_rewards": refused("rewards are not whitened token by token"),
    "use_reward_scaling": refused("rewards have reward_normalization"),
    "use_reward_norm": refused("rewards have reward_normalization"),
    "add_len_reward": refused("no reward for lengths"),
    "norm_*_type": refused("rewards have reward_normalization"),
    "l2": refused("weight_decay alone"),
    "ratio_type": refused(
        "the ratio is of a token, or of an episode with gspo", off=("token", None)
    ),
    "kl_penalty": refused("the KL in the reward is log p - log q", off=("kl", None)),
    "use_token_reward": refused("a turn has one reward"),
    "*.group_filter_cls": Absent(
        "groups of equal rewards are left out with algorithm.dynamic_sampling",
        off=("roll.pipeline.agentic.agentic_pipeline.GroupFilter", None),
        algorithm=True,
    ),
    "*.topr_*_weight": refused("topr weighs both signs alike", off=(1, None)),
    "*.tis_*_bound": Absent("only the loss tis has it"),
    "*.cispo_epsilon_*": Absent("only the loss cispo has it"),
    "*.cispo_use_unified_mask": refused("cispo leaves no token out"),
    f"{TRAINING}.warmup_ratio": refused("warmup_steps counts steps"),
    "*.repetition_penalty": Absent("tokens are sampled without penalties", off=(1, None)),
    "*.stop_strings": refused("a reply ends with the model's own end of turn"),
    "*.include_stop_str_in_output": Absent("a reply ends with the model's own end of turn"),
    "*.num_beams": Absent("tokens are sampled", off=(1, None)),
    "*.num_return_sequences": Absent("ROLL sets it to 1 itself", off=(1, None)),
    "batch_adjust_mode": Absent("a batch need not be divisible, nothing is copied or deleted"),
    "env_monitor*": Absent("an episode has a deadline, rollout.episode_timeout_s"),
    "rollout_mock*": Absent("`ajet inspect replay` runs a recorded episode again"),
    "rollout_dump_dir": Absent("every episode is in the run folder"),
    "*enable_reference": Absent("the starting model is there when a KL is asked for"),
    **keys_of(
        "",
        "partial_gpu_mode rpc_timeout max_running_requests generate_opt_level is_offload_* "
        "is_num_return_sequences_expand is_use_additional_prompts max_additional_running_prompts "
        "user_defined_rollout_loop_cls router_args* model_update_buffer_size_mb local_rank "
        "deepspeed_*",
        GPUS,
    ),
    "*max_ckpt_to_keep": Absent("0 keeps all in ROLL; see max_checkpoints_to_keep"),
    "checkpoint_config*": Absent("checkpoints are in the run folder"),
    **keys_of("", "base_dir logging_dir", Absent("all that a run writes is in its run folder")),
    "logging_steps": Absent("every step is logged"),
    "tracker_kwargs*": Absent("loggers have no settings here"),
    "model_name": Absent("the run folder names the model"),
    "model_download_type": Absent("models are read from disk or the Hub"),
    "system_envs*": Absent("set variables of the environment where you start ajet"),
    "hydra*": Absent("Hydra's settings"),
    "*profiler*": Absent("profiling is not built"),
    "report_length_and_rewards": Absent("both are metrics of every step"),
    "prompt_length": Absent("sequence_length is the limit that counts"),
    "response_length": Absent("sequence_length is the limit that counts"),
    "val_prompt_length": Absent("validation has the limits of training"),
    "val_sequence_length": Absent("validation has the limits of training"),
    "custom_env.*": Absent("no name of custom_envs refers to it"),
    "value_clip": Absent("only the critic of gae has it"),
    **keys_of("", "reward_pretrain critic*", Absent("adv_estimator has no critic")),
    "reference*": Absent("the reference is the starting model, where training is"),
    "reward.*": Absent("an environment rewards its episodes itself; a judge is another model"),
    "*.model_args.lora_dropout": refused("adapters have no dropout"),
    **keys_of("actor_train", WORKER, GPUS),
    **keys_of("actor_infer", WORKER, GPUS),
    **keys_of("*_env_manager", WORKER, GPUS),
    "*_env_manager.generating_args*": Absent("actor_infer.generating_args takes its place in ROLL"),
    "*_env_manager.llm_proxy*": Absent("the model that is trained plays"),
    **keys_of("*_env_manager", "max_traj_per_env system_envs*", GPUS),
}
"""For keys that no function and no other table converts; the first matching pattern counts."""
