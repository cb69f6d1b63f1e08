"""Tables of Trinity-RFT's keys: its defaults, the keys of ajet that mean the same, and keys without
a counterpart, each with the reason. Other keys are converted in trinity.py.
"""

from typing import Any

from ajet.convert.draft import (
    Absent,
    Choices,
    Default,
    Row,
    defaults_of,
    keys_of,
    refused,
    resume_mode,
    same_names,
)

TRAINER = "ajet.trainer_common"
ALGORITHM = f"{TRAINER}.algorithm"
OPTIMIZER = "algorithm.optimizer"
ENGINE = "explorer.rollout_model"
INPUT = "buffer.explorer_input"
EXPERIENCES = "buffer.trainer_input.experience_buffer"
ACTOR = "trainer.trainer_config.actor_rollout_ref.actor"
CRITIC = "trainer.trainer_config.critic"

ENGINES = Choices({"vllm": "vllm", "vllm_async": "vllm", "sglang": "sglang"}, "no such engine")
SYNC = "synchronizer.sync_"
SYNC_METHODS = Choices(same_names("nccl checkpoint memory"), "no such value")
SYNC_STYLES = Choices(
    same_names("fixed explorer_driven trainer_driven fully_async")
    | {"dynamic_by_explorer": "explorer_driven", "dynamic_by_trainer": "trainer_driven"},
    "no such value",
)
"""Values of Trinity-RFT, of earlier versions too."""

KEYS: tuple[Row, ...] = (
    ("project", "ajet.project_name"),
    ("name", "ajet.experiment_name"),
    ("continue_from_checkpoint", f"{TRAINER}.resume", resume_mode),
    ("algorithm.repeat_times", "ajet.rollout.num_repeat", Default(1)),
    (f"{OPTIMIZER}.betas", f"{TRAINER}.optim.betas", Default([0.9, 0.999])),
    (f"{OPTIMIZER}.weight_decay", f"{TRAINER}.optim.weight_decay", float, Default(0.01)),
    ("model.model_path", "ajet.model.path"),
    ("model.chat_template_path", "ajet.model.chat_template"),
    ("cluster.node_num", f"{TRAINER}.nnodes"),
    ("cluster.gpu_per_node", f"{TRAINER}.n_gpus_per_node"),
    ("buffer.batch_size", "ajet.data.train_batch_size", Default(1)),
    ("buffer.total_epochs", f"{TRAINER}.total_epochs", Default(1)),
    ("buffer.total_steps", f"{TRAINER}.total_training_steps"),
    (f"{ENGINE}.engine_num", "ajet.rollout.n_vllm_engine", Default(1)),
    (f"{ENGINE}.engine_type", "ajet.rollout.name", ENGINES),
    (f"{ENGINE}.tensor_parallel_size", "ajet.rollout.tensor_model_parallel_size", Default(1)),
    (f"{ENGINE}.gpu_memory_utilization", "trinity.rollout.gpu_memory_utilization"),
    (f"{ENGINE}.tool_call_parser", "ajet.rollout.tool_parser"),
    ("explorer.eval_interval", f"{TRAINER}.test_freq", Default(100)),
    ("explorer.eval_on_startup", f"{TRAINER}.val_before_train", Default(True)),
    ("explorer.max_timeout", "ajet.rollout.episode_timeout_s", float, Default(1800)),
    (f"{SYNC}method", f"trinity.{SYNC}method", SYNC_METHODS),
    (f"{SYNC}style", f"trinity.{SYNC}style", SYNC_STYLES),
    (f"{SYNC}interval", f"trinity.{SYNC}interval"),
    (f"{SYNC}offset", f"trinity.{SYNC}offset"),
    ("trainer.max_token_len_per_gpu", "trinity.trainer.max_token_len_per_gpu"),
    ("trainer.ulysses_sequence_parallel_size", f"{TRAINER}.ulysses_sequence_parallel_size"),
    ("trainer.max_checkpoints_to_keep", f"{TRAINER}.max_checkpoints_to_keep"),
    (f"{ACTOR}.ppo_epochs", f"{TRAINER}.ppo_epochs"),
    (f"{ACTOR}.fsdp_config.param_offload", f"{TRAINER}.fsdp_config.param_offload"),
    ("trainer.param_offload", f"{TRAINER}.fsdp_config.param_offload"),
    ("algorithm.enable_router_replay", "ajet.rollout.routing_replay"),
)
CRITIC_KEYS: tuple[Row, ...] = (
    ("model.critic_model_path", f"{TRAINER}.critic.path"),
    (f"{CRITIC}.optim.lr", f"{TRAINER}.critic.lr"),
    (f"{CRITIC}.optim.weight_decay", f"{TRAINER}.critic.weight_decay"),
    (f"{CRITIC}.cliprange_value", f"{TRAINER}.critic.cliprange_value"),
    (f"{CRITIC}.grad_clip", f"{TRAINER}.critic.grad_clip"),
    ("algorithm.advantage_fn_args.gamma", f"{ALGORITHM}.gamma", float),
    ("algorithm.advantage_fn_args.lam", f"{ALGORITHM}.lam", float),
)

DEFAULTS: dict[str, Any] = defaults_of(KEYS) | {
    "mode": "both",
    "algorithm.algorithm_type": "ppo",
    f"{OPTIMIZER}.lr_warmup_steps": -1,
    f"{OPTIMIZER}.lr": 1e-6,
    f"{OPTIMIZER}.clip_grad": 1.0,
    "algorithm.bypass_old_logprobs": True,
    "explorer.max_retry_times": 2,
    "explorer.runner_per_model": 8,
    "synchronizer.sync_method": "nccl",
    "synchronizer.sync_style": "fixed",
    "synchronizer.sync_interval": 1,
    "synchronizer.sync_offset": 0,
    "trainer.save_interval": 0,
    "monitor.monitor_type": "tensorboard",
}

GPUS = Absent("the backbone shares out processes and GPUs")
UNUSED = Absent("the gradient does not depend on it: max_tokens_per_micro_batch")
RECORDED = Absent("every call of the model is recorded")
ROWS = Absent("experiences go through ajet's own buffer (trinity.buffer)")
OTHER_TRAINER = Absent("there is one trainer, ajet's own", off=("verl", "fsdp", "fsdp2", None))
ABSENT: dict[str, Absent] = {
    "group": Absent("the run folder is named by experiment_dir"),
    "checkpoint_job_dir": Absent("the run folder holds the checkpoints"),
    "ray_namespace": GPUS,
    "ignore_validator_suggestions": Absent("`ajet plan` says what a GPU needs"),
    f"{OPTIMIZER}.optimizer_type": refused("AdamW", off=("adam", "adamw", None)),
    **keys_of(OPTIMIZER, "fused foreach", GPUS),
    "algorithm.sample_strategy": Absent(
        "groups are trained in the order of trinity.buffer.priority",
        off=("default", "warmup", None),
        algorithm=True,
    ),
    "algorithm.sample_strategy_args*": Absent("trinity.buffer has the buffer's settings"),
    "algorithm.rollout_correction*": refused("write it in algorithm.rollout_correction"),
    "algorithm.*_fn": refused("a part of an algorithm type that is not built"),
    "algorithm.advantage_fn_args.epsilon": Absent("it keeps a division from 0"),
    "algorithm.advantage_fn_args*": refused("a setting of an estimator"),
    "algorithm.policy_loss_fn_args*": refused("a setting of a loss"),
    "algorithm.kl_penalty_fn_args*": Absent("kl_penalty_fn is none"),
    "algorithm.kl_loss_fn_args*": Absent("kl_loss_fn is none"),
    "algorithm.entropy_loss_fn_args*": Absent("entropy_loss_fn is none"),
    "model.custom_chat_template": refused(
        "write it to a file, and name the file at ajet.model.chat_template"
    ),
    "model.min_response_tokens": refused("a reply may end at once", off=(0, 1, None)),
    "model.enable_prompt_truncation": Absent("a prompt that is too long ends the episode"),
    "model.repetition_penalty": refused("tokens are sampled without penalties", off=(1, None)),
    "model.logprobs": RECORDED,
    "model.rope_*": refused("the model's config is not changed"),
    **keys_of("model", "tinker.* external_model.*", refused("the model is trained here")),
    "model.trust_remote_code": Absent("a model's own code is not run", off=(False, None)),
    **keys_of("model", "fully_sharded_loras max_cpu_loras", GPUS),
    **keys_of("cluster", "ray_address *gpu_num*", GPUS),
    "buffer.max_retry_*": ROWS,
    "buffer.trainer_input.auxiliary_buffers*": refused(
        "a step trains on its own episodes; rows of given replies are a stage of kind supervised"
    ),
    "buffer.trainer_input.sft_warmup*": refused(
        "write a stage of kind supervised before (ajet.stages)"
    ),
    f"{EXPERIENCES}.replay_buffer.*": refused("trinity.buffer.max_reuse and priority are alike"),
    f"{EXPERIENCES}.*": ROWS,
    f"{INPUT}.reply_prefix": refused("a reply begins where the model begins"),
    f"{ENGINE}.chat_template": refused(
        "write it to a file, and name the file at ajet.model.chat_template"
    ),
    f"{ENGINE}.ignore_eos": refused("a reply ends with the end of turn"),
    **keys_of(
        ENGINE, "enable_history enable_openai_api enable_auto_tool_choice logprobs", RECORDED
    ),
    f"{ENGINE}.reasoning_parser": Absent("the reasoning stays in the reply"),
    f"{ENGINE}.seed": Absent("ajet.seed draws everything"),
    **keys_of(
        ENGINE,
        "use_v1 enforce_eager enable_prefix_caching enable_chunked_prefill dtype nnodes "
        "bundle_indices enable_lora* lora_* model_path name extra_engine_args* weight_sync_* "
        "*_parallel_size enable_expert_parallel",
        GPUS,
    ),
    "explorer.auxiliary_models": refused(
        "an agent calls other models with its own client; nothing starts them"
    ),
    "explorer.over_rollout.*": refused("rollout.group_size_redundancy is alike"),
    "explorer.dynamic_timeout.*": refused("an episode has episode_timeout_s"),
    "explorer.env_vars*": Absent("set variables of the environment where you start ajet"),
    "explorer.max_inflight_batches": Absent("trinity.max_staleness bounds what runs ahead"),
    **keys_of(
        "explorer",
        "name runner_num runner_per_model runner_prepare_* runner_state_report_interval "
        "concurrent_mode max_repeat_times_per_runner max_timeout max_retry_times eval_interval "
        "eval_on_startup bench_on_latest_checkpoint api_port listen_address "
        "service_status_check_interval min_running_model_num",
        GPUS,
    ),
    **keys_of("trainer", "trainer_type trainer_strategy", OTHER_TRAINER),
    "trainer.trainer_config_path": refused(
        "the settings of that file are not read: set them in ajet.trainer_common"
    ),
    **keys_of("trainer.trainer_config", "*micro_batch* *dynamic_bsz *token_len_per_gpu", UNUSED),
    **keys_of(
        "trainer.trainer_config",
        "*fsdp_config* *megatron* *strategy *hybrid_engine *ulysses_sequence_parallel_size "
        "actor_rollout_ref.model.* *.checkpoint.* critic.model.* actor_rollout_ref.ref.* trainer.*",
        GPUS,
    ),
    "trainer.trainer_config*": refused("a setting of verl's trainer"),
    "trainer.critic_warmup": refused("critic.warmup_steps counts steps, not updates"),
    **keys_of(
        "trainer",
        "use_remove_padding balance_batch optimizer_offload grad_offload offload_policy megatron.* "
        "save_strategy name",
        GPUS,
    ),
    **keys_of("trainer", "use_dynamic_bsz fix_actor_microbatch_loss_scale", UNUSED),
    "trainer.save_hf_checkpoint": Absent("`ajet` saves what transformers loads"),
    "trainer.enable_preview": Absent("`ajet view` shows every episode"),
    **keys_of("synchronizer", "sync_timeout wait_for_checkpoint", GPUS),
    "synchronizer.*_sync_interval": refused("explorer and trainer have one sync_interval"),
    "monitor.*": Absent("loggers have no settings here"),
    "data_processor.experience_pipeline.operators": refused(
        "experiences are not changed: shape rewards in your judge"
    ),
    "data_processor.experience_pipeline.*": Absent("every episode is in the run folder"),
    "data_processor.task_pipeline*": refused(
        "tasks are those of the reader, in ajet.data.sampler's order"
    ),
    "data_processor*": refused("tasks and experiences are not changed"),
    "service.*": GPUS,
    "log.*": Absent("the run folder has the log"),
    "stages": refused("write ajet.stages: each has a name and the keys that differ"),
}
"""For keys that no function and no other table converts; the first matching pattern counts."""
