"""Tables of verl's keys: their sections, verl's defaults, and the keys of ajet that mean the same.
Other keys are converted in verl.py and verl_loss.py, or have no counterpart (verl_absent.py).
"""

from typing import Any

from ajet.convert.draft import Choices, Default, Row, defaults_of, same_names

TRAINER = "ajet.trainer_common"
ALGORITHM = f"{TRAINER}.algorithm"
PARAM_DTYPE = f"{TRAINER}.fsdp_config.param_dtype"
ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"
TURNS = f"{ROLLOUT}.multi_turn"
CORRECTION = "algorithm.rollout_correction"

ESTIMATORS = Choices(
    same_names(
        "gae",
        "grpo",
        "rloo",
        "reinforce_plus_plus",
        "reinforce_plus_plus_baseline",
        "remax",
        "opo",
        "gigpo",
        "gdpo",
    )
    | {"grpo_vectorized": "grpo", "rloo_vectorized": "rloo", "grpo_passk": "pass_at_k"},
    "not built here",
)
TOKEN_LEVEL = Choices({True: "token-mean", False: "seq-mean-token-mean"}, "true or false")
"""What loss_agg_mode was called in early versions."""
ENGINES = Choices(same_names("vllm", "sglang"), "no such engine")
DTYPES = Choices(
    {"bfloat16": "bfloat16", "bf16": "bfloat16", "float32": "float32", "fp32": "float32"},
    "computed in bfloat16 or float32",
)
"""The dtype that FSDP computes in; shards are float32 here."""

KEYS: tuple[Row, ...] = (
    ("data.train_batch_size", "ajet.data.train_batch_size", Default(1024)),
    ("data.max_prompt_length", "ajet.data.max_prompt_length", Default(512)),
    ("data.max_response_length", "ajet.data.max_response_length", Default(512)),
    ("data.shuffle", "ajet.data.shuffle"),
    ("data.seed", "ajet.seed"),
    ("data.prompt_key", "ajet.task_reader.query_field"),
    (f"{MODEL}.path", "ajet.model.path"),
    (f"{MODEL}.custom_chat_template", "ajet.model.chat_template"),
    (f"{ACTOR}.ppo_epochs", f"{TRAINER}.ppo_epochs"),
    (f"{ACTOR}.use_kl_loss", f"{TRAINER}.use_kl_loss", Default(False)),
    (f"{ACTOR}.kl_loss_coef", f"{TRAINER}.kl_loss_coef", Default(0.001)),
    (f"{ACTOR}.entropy_coeff", f"{ALGORITHM}.entropy_coef"),
    (f"{ACTOR}.clip_ratio_low", f"{ALGORITHM}.clip_low", Default(0.2)),
    (f"{ACTOR}.clip_ratio_high", f"{ALGORITHM}.clip_high", Default(0.2)),
    (f"{ACTOR}.tau_pos", f"{ALGORITHM}.sapo_tau_pos"),
    (f"{ACTOR}.tau_neg", f"{ALGORITHM}.sapo_tau_neg"),
    (f"{ACTOR}.use_token_level_loss", f"{ALGORITHM}.loss_agg_mode", TOKEN_LEVEL),
    (f"{ACTOR}.optim.lr", f"{TRAINER}.optim.lr", Default(1e-6)),
    (f"{ACTOR}.optim.betas", f"{TRAINER}.optim.betas"),
    (f"{ACTOR}.optim.weight_decay", f"{TRAINER}.optim.weight_decay", Default(0.01)),
    (f"{ACTOR}.grad_clip", f"{TRAINER}.optim.grad_clip", Default(1.0)),
    (f"{ACTOR}.fsdp_config.dtype", PARAM_DTYPE, DTYPES),
    (f"{ACTOR}.fsdp_config.mixed_precision.param_dtype", PARAM_DTYPE, DTYPES),
    (f"{ACTOR}.fsdp_config.param_offload", f"{TRAINER}.fsdp_config.param_offload"),
    (f"{ACTOR}.fsdp_config.reshard_after_forward", f"{TRAINER}.fsdp_config.reshard_after_forward"),
    (f"{MODEL}.enable_gradient_checkpointing", f"{TRAINER}.fsdp_config.activation_checkpointing"),
    (f"{ACTOR}.ulysses_sequence_parallel_size", f"{TRAINER}.ulysses_sequence_parallel_size"),
    (f"{ACTOR}.ppo_max_token_len_per_gpu", "verl.trainer.max_token_len_per_gpu"),
    (f"{ROLLOUT}.name", "ajet.rollout.name", ENGINES),
    (f"{ROLLOUT}.n", "ajet.rollout.num_repeat", Default(1)),
    (f"{ROLLOUT}.temperature", "ajet.rollout.temperature", Default(1.0)),
    (f"{ROLLOUT}.top_k", "ajet.rollout.top_k"),
    (f"{ROLLOUT}.top_p", "ajet.rollout.top_p", float),
    (f"{ROLLOUT}.tensor_model_parallel_size", "ajet.rollout.tensor_model_parallel_size"),
    (f"{ROLLOUT}.max_model_len", "ajet.rollout.max_model_len"),
    (f"{ROLLOUT}.max_num_seqs", "ajet.rollout.max_num_seqs"),
    (f"{ROLLOUT}.gpu_memory_utilization", "verl.rollout.gpu_memory_utilization"),
    (f"{ROLLOUT}.val_kwargs.temperature", "ajet.rollout.val_kwargs.temperature"),
    (f"{ROLLOUT}.val_kwargs.top_k", "ajet.rollout.val_kwargs.top_k"),
    (f"{ROLLOUT}.val_kwargs.top_p", "ajet.rollout.val_kwargs.top_p", float),
    (f"{ROLLOUT}.val_kwargs.n", f"{TRAINER}.val_pass_n", Default(1)),
    (f"{ROLLOUT}.agent.agent_loop_config_path", "ajet.rollout.agent.agent_loop_config_path"),
    ("algorithm.adv_estimator", f"{ALGORITHM}.adv_estimator", ESTIMATORS, Default("gae")),
    ("algorithm.gamma", f"{ALGORITHM}.gamma", float),
    ("algorithm.lam", f"{ALGORITHM}.lam", float),
    ("algorithm.norm_adv_by_std_in_grpo", f"{ALGORITHM}.normalize_std"),
    ("algorithm.use_kl_in_reward", f"{ALGORITHM}.use_kl_in_reward"),
    ("algorithm.kl_ctrl.type", f"{ALGORITHM}.kl_ctrl.type"),
    ("algorithm.kl_ctrl.kl_coef", f"{ALGORITHM}.kl_ctrl.kl_coef"),
    ("algorithm.kl_ctrl.horizon", f"{ALGORITHM}.kl_ctrl.horizon"),
    ("algorithm.kl_ctrl.target_kl", f"{ALGORITHM}.kl_ctrl.target_kl"),
    ("algorithm.filter_groups.enable", f"{ALGORITHM}.dynamic_sampling.enable"),
    ("trainer.total_epochs", f"{TRAINER}.total_epochs", Default(30)),
    ("trainer.total_training_steps", f"{TRAINER}.total_training_steps"),
    ("trainer.project_name", "ajet.project_name"),
    ("trainer.experiment_name", "ajet.experiment_name"),
    ("trainer.default_local_dir", "ajet.experiment_dir"),
    ("trainer.logger", f"{TRAINER}.logger"),
    ("trainer.save_freq", f"{TRAINER}.save_freq", Default(-1)),
    ("trainer.test_freq", f"{TRAINER}.test_freq", Default(-1)),
    ("trainer.val_before_train", f"{TRAINER}.val_before_train", Default(True)),
    ("trainer.max_actor_ckpt_to_keep", f"{TRAINER}.max_checkpoints_to_keep"),
)

CRITIC: tuple[Row, ...] = (
    ("critic.model.path", f"{TRAINER}.critic.path"),
    ("critic.optim.lr", f"{TRAINER}.critic.lr"),
    ("critic.optim.weight_decay", f"{TRAINER}.critic.weight_decay", Default(0.01)),
    ("critic.grad_clip", f"{TRAINER}.critic.grad_clip"),
    ("critic.cliprange_value", f"{TRAINER}.critic.cliprange_value"),
    ("critic.ppo_epochs", f"{TRAINER}.critic.ppo_epochs"),
    ("trainer.critic_warmup", f"{TRAINER}.critic.warmup_steps"),
)

TOOLS: tuple[Row, ...] = (
    *(
        (f"{TURNS}.{name}", f"ajet.rollout.multi_turn.{name}")
        for name in (
            "tool_config_path",
            "interaction_config_path",
            "max_assistant_turns",
            "max_user_turns",
            "max_parallel_calls",
            "tool_response_truncate_side",
        )
    ),
    (f"{TURNS}.format", "ajet.rollout.tool_parser"),
)

DEFAULTS: dict[str, Any] = defaults_of(KEYS, CRITIC, TOOLS) | {
    f"{ACTOR}.optim.lr_warmup_steps": -1,
    f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.0,
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ACTOR}.clip_ratio_c": 3.0,
    f"{ACTOR}.policy_loss.clip_cov_ratio": 0.0002,
    f"{ACTOR}.policy_loss.clip_cov_lb": 1.0,
    f"{ACTOR}.policy_loss.clip_cov_ub": 5.0,
    f"{ACTOR}.policy_loss.kl_cov_ratio": 0.0002,
    f"{ACTOR}.policy_loss.ppo_kl_coef": 0.1,
    f"{TURNS}.max_parallel_calls": 1,
    f"{TURNS}.max_tool_response_length": 256,
    "critic.ppo_mini_batch_size": None,
}
