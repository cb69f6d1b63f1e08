"""Tables of verl's keys: the keys of ajet that mean the same, verl's defaults, and keys without a
counterpart, each with the reason. Other keys are converted in verl.py and verl_algorithm.py.
"""

from collections.abc import Mapping
from typing import Any

from ajet.convert.draft import (
    NOTHING,
    Absent,
    Choices,
    Default,
    Row,
    defaults_of,
    keys_of,
    refused,
    same_keys,
    same_names,
)

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
        "gae grpo rloo reinforce_plus_plus reinforce_plus_plus_baseline remax opo gigpo gdpo"
    )
    | {"grpo_vectorized": "grpo", "rloo_vectorized": "rloo", "grpo_passk": "pass_at_k"},
    "not built here",
)
TOKEN_LEVEL = Choices({True: "token-mean", False: "seq-mean-token-mean"}, "true or false")
"""What loss_agg_mode was called in early versions."""
ENGINES = Choices(same_names("vllm sglang"), "no such engine")
ROUTING_REPLAY = Choices(
    {"disabled": False, "R3": True},
    "R2 replays the trainer's experts; ajet replays the engine's, which is R3",
)
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
    ("data.prompt_key", "ajet.task_reader.query_field", Default("prompt")),
    (f"{MODEL}.path", "ajet.model.path"),
    (f"{MODEL}.custom_chat_template", "ajet.model.chat_template"),
    ("data.apply_chat_template_kwargs", "ajet.model.chat_template_kwargs"),
    (f"{ACTOR}.ppo_epochs", f"{TRAINER}.ppo_epochs"),
    (f"{ACTOR}.use_kl_loss", f"{TRAINER}.use_kl_loss", Default(False)),
    (f"{ACTOR}.kl_loss_coef", f"{TRAINER}.kl_loss_coef", Default(0.001)),
    (f"{ACTOR}.entropy_coeff", f"{ALGORITHM}.entropy_coef"),
    (f"{ACTOR}.tau_pos", f"{ALGORITHM}.sapo_tau_pos"),
    (f"{ACTOR}.tau_neg", f"{ALGORITHM}.sapo_tau_neg"),
    (f"{ACTOR}.use_token_level_loss", f"{ALGORITHM}.loss_agg_mode", TOKEN_LEVEL),
    (f"{ACTOR}.optim.lr", f"{TRAINER}.optim.lr", Default(1e-6)),
    (f"{ACTOR}.optim.betas", f"{TRAINER}.optim.betas"),
    (f"{ACTOR}.optim.weight_decay", f"{TRAINER}.optim.weight_decay", Default(0.01)),
    (f"{ACTOR}.fsdp_config.dtype", PARAM_DTYPE, DTYPES),
    (f"{ACTOR}.fsdp_config.mixed_precision.param_dtype", PARAM_DTYPE, DTYPES),
    *same_keys(
        f"{ACTOR}.fsdp_config", f"{TRAINER}.fsdp_config", "param_offload reshard_after_forward"
    ),
    (f"{MODEL}.enable_gradient_checkpointing", f"{TRAINER}.fsdp_config.activation_checkpointing"),
    (f"{ACTOR}.checkpoint.async_save", f"{TRAINER}.save_in_background"),
    (f"{ACTOR}.ulysses_sequence_parallel_size", f"{TRAINER}.ulysses_sequence_parallel_size"),
    (f"{ACTOR}.ppo_max_token_len_per_gpu", "verl.trainer.max_token_len_per_gpu"),
    (f"{ROLLOUT}.name", "ajet.rollout.name", ENGINES),
    (f"{ROLLOUT}.n", "ajet.rollout.num_repeat", Default(1)),
    (f"{ACTOR}.router_replay.mode", "ajet.rollout.routing_replay", ROUTING_REPLAY),
    (f"{ROLLOUT}.temperature", "ajet.rollout.temperature", Default(1.0)),
    (f"{ROLLOUT}.top_k", "ajet.rollout.top_k"),
    (f"{ROLLOUT}.top_p", "ajet.rollout.top_p", float),
    *same_keys(ROLLOUT, "ajet.rollout", "tensor_model_parallel_size max_model_len max_num_seqs"),
    (f"{ROLLOUT}.gpu_memory_utilization", "verl.rollout.gpu_memory_utilization"),
    (f"{ROLLOUT}.val_kwargs.temperature", "ajet.rollout.val_kwargs.temperature"),
    (f"{ROLLOUT}.val_kwargs.top_k", "ajet.rollout.val_kwargs.top_k"),
    (f"{ROLLOUT}.val_kwargs.top_p", "ajet.rollout.val_kwargs.top_p", float),
    (f"{ROLLOUT}.val_kwargs.n", f"{TRAINER}.val_pass_n", Default(1)),
    (f"{ROLLOUT}.agent.agent_loop_config_path", "ajet.rollout.agent.agent_loop_config_path"),
    ("algorithm.adv_estimator", f"{ALGORITHM}.adv_estimator", ESTIMATORS, Default("gae")),
    ("algorithm.lam", f"{ALGORITHM}.lam", float),
    ("algorithm.norm_adv_by_std_in_grpo", f"{ALGORITHM}.normalize_std"),
    ("algorithm.use_kl_in_reward", f"{ALGORITHM}.use_kl_in_reward"),
    *same_keys("algorithm.kl_ctrl", f"{ALGORITHM}.kl_ctrl", "type kl_coef horizon target_kl"),
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
)

CRITIC: tuple[Row, ...] = (
    ("critic.model.path", f"{TRAINER}.critic.path"),
    ("critic.optim.lr", f"{TRAINER}.critic.lr"),
    ("critic.optim.weight_decay", f"{TRAINER}.critic.weight_decay", Default(0.01)),
    ("critic.cliprange_value", f"{TRAINER}.critic.cliprange_value"),
    ("trainer.critic_warmup", f"{TRAINER}.critic.warmup_steps"),
)

LORA: tuple[Row, ...] = (
    (f"{MODEL}.lora_alpha", f"{TRAINER}.lora.alpha", float),
    (f"{MODEL}.target_modules", f"{TRAINER}.lora.target_modules"),
)
TOOLS: tuple[Row, ...] = (
    *same_keys(
        TURNS,
        "ajet.rollout.multi_turn",
        "tool_config_path interaction_config_path max_assistant_turns max_user_turns "
        "max_parallel_calls tool_response_truncate_side",
    ),
    (f"{TURNS}.format", "ajet.rollout.tool_parser"),
)

DEFAULTS: dict[str, Any] = defaults_of(KEYS, CRITIC, TOOLS) | {
    f"{ACTOR}.optim.clip_grad": 1.0,
    f"{ACTOR}.optim.lr_warmup_steps": -1,
    f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.0,
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ACTOR}.clip_ratio": 0.2,
    f"{ACTOR}.clip_ratio_low": 0.2,
    f"{ACTOR}.clip_ratio_high": 0.2,
    f"{ACTOR}.clip_ratio_c": 3.0,
    f"{ACTOR}.freeze_vision_tower": False,
    f"{ACTOR}.policy_loss.clip_cov_ratio": 0.0002,
    f"{ACTOR}.policy_loss.clip_cov_lb": 1.0,
    f"{ACTOR}.policy_loss.clip_cov_ub": 5.0,
    f"{ACTOR}.policy_loss.kl_cov_ratio": 0.0002,
    f"{ACTOR}.policy_loss.ppo_kl_coef": 0.1,
    f"{MODEL}.lora.alpha": 32,
    f"{TURNS}.max_parallel_calls": 1,
    f"{TURNS}.max_tool_response_length": 256,
    "critic.ppo_mini_batch_size": None,
    "critic.optim.clip_grad": 1.0,
}
FULLY_ASYNC: dict[str, Any] = {
    f"{CORRECTION}.bypass_mode": True,
    "async_training.trigger_parameter_sync_step": 4,
    "async_training.staleness_threshold": 0.1,
    "async_training.partial_rollout": True,
    "async_training.require_batches": 1,
    "rollout.nnodes": 1,
    "rollout.n_gpus_per_node": 8,
    "data.train_batch_size": 0,  # its trainer takes no other value
}
ONE_STEP_OFF: dict[str, Any] = {f"{CORRECTION}.bypass_mode": True, "one_step_off_policy": True}
CONFIGS: dict[str, Mapping[str, Any]] = {
    "*fully_async*": FULLY_ASYNC,
    "async_training": FULLY_ASYNC,
    "*one_step_off*": ONE_STEP_OFF,
}
"""Defaults of verl's other trainers, by patterns of the program, of the config's name or of a
section that no other trainer has. verl has no key `one_step_off_policy`: it stands for the
program."""

KL_IN_REWARD = "algorithm.use_kl_in_reward"
EARLY_KEYS = (
    f"{ACTOR}.ppo_micro_batch_size",
    f"{ROLLOUT}.log_prob_micro_batch_size",
    f"{ACTOR}.fsdp_config.grad_offload",
)
"""Keys of verl's first versions, which later ones have under other names or not at all."""
EARLY_DEFAULTS = {
    KL_IN_REWARD: "true before 0.3, unless use_kl_loss was",
    f"{ACTOR}.entropy_coeff": "0.001 before 0.4",
    f"{ACTOR}.clip_ratio_c": "no bound before 0.3",
}

GPUS = Absent("the backbone shares out processes and GPUs")
MANAGER = refused(
    "this manager shapes the reward: write it as a judge",
    off=("naive", "dapo", "batch", "prime", "gdpo", "rate_limited", "remote", None),
)
"""The others score a row as naive does, at another speed or with a penalty of `overlong`."""
MANAGERS_SETTING = refused("a setting of the reward manager: write it into a judge")
MICRO = Absent("the gradient does not depend on it: max_tokens_per_micro_batch", off=(None,))

ABSENT: dict[str, Absent] = {
    f"{ACTOR}.policy_loss.*": Absent("a setting of a loss that is not built"),
    f"{ACTOR}.loss_scale_factor": refused(
        "seq-mean-token-sum-norm divides by data.max_response_length"
    ),
    f"{ACTOR}.optim.optimizer": refused("AdamW", off=("AdamW", "adam", None)),
    **keys_of(
        f"{ACTOR}.optim.override_optimizer_config",
        "*offload* *overlap* use_precision_aware_optimizer",
        GPUS,
    ),
    f"{ACTOR}.optim.override_optimizer_config*": refused("AdamW's betas alone"),
    f"{ACTOR}.optim.*": Absent("the learning rate stays constant after its warm-up"),
    f"{ACTOR}.shuffle": Absent("a batch is divided by the seed"),
    f"{ACTOR}.calculate_sum_pi_squared": Absent("no estimator needs it"),
    f"{ACTOR}.calculate_entropy": Absent("entropy is a metric of every step"),
    **keys_of(ACTOR, "*micro_batch* use_dynamic_bsz", MICRO),
    **keys_of(
        ACTOR,
        "strategy rollout_n fsdp_config.* megatron.* veomni.* torchtitan.* checkpoint.* profiler.* "
        "qat.* data_loader_seed use_prefix_grouper "
        "use_torch_compile use_fused_kernels use_remove_padding entropy_from_logits_with_chunking "
        "entropy_from_logits_chunk_size entropy_checkpointing sum_pi_squared_checkpointing "
        "pad_to_length* global_batch_info* load_weight",
        GPUS,
    ),
    f"{MODEL}.lora_adapter_path": refused("adapters are initialized at random"),
    f"{MODEL}.lora.target_modules": refused(
        "Megatron's names of layers: all linear ones get adapters",
        off=(*NOTHING, ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]),
    ),
    f"{MODEL}.lora.*": Absent("adapters have a rank, a scale and layers"),
    f"{MODEL}.trust_remote_code": Absent("a model's own code is not run", off=(False, None)),
    f"{MODEL}.tokenizer_path": refused("the tokenizer is the model's"),
    f"{MODEL}.override_config.attn_implementation": GPUS,
    f"{MODEL}.override_config*": refused("the model's config is not changed"),
    f"{MODEL}.mtp.enable_train": refused("no loss on the prediction of several tokens"),
    f"{MODEL}.mtp*": Absent("no prediction of several tokens"),
    **keys_of(
        MODEL,
        "hf_config_path use_shm external_lib "
        "enable_activation_offload use_remove_padding use_liger use_fused_kernels "
        "fused_kernel_options.* tiled_mlp.* fsdp_config.*",
        GPUS,
    ),
    "actor_rollout_ref.ref.model.path": refused(
        "the reference is the model that training starts from"
    ),
    "actor_rollout_ref.ref.*": Absent("the reference is where training is", off=(None,)),
    **keys_of("actor_rollout_ref", "hybrid_engine nccl_timeout", GPUS),
    f"{ROLLOUT}.do_sample": refused("training samples", off=(True, None)),
    f"{ROLLOUT}.val_kwargs.do_sample": Absent(
        "verl's agent loops read val_kwargs.temperature alone"
    ),
    f"{ROLLOUT}.ignore_eos": refused("a reply ends with the end of turn"),
    f"{ROLLOUT}.over_sample_rate": refused("rollout.group_size_redundancy is alike"),
    f"{ROLLOUT}.repetition_penalty": refused("tokens are sampled without penalties", off=(1, None)),
    f"{ROLLOUT}.prompt_length": Absent("data.max_prompt_length is the limit", off=NOTHING),
    f"{ROLLOUT}.response_length": Absent("data.max_response_length is the limit", off=NOTHING),
    f"{ROLLOUT}.calculate_log_probs": Absent("log-probabilities are always recorded"),
    f"{ROLLOUT}.enable_rollout_routing_replay": Absent("actor.router_replay.mode says it"),
    f"{ACTOR}.router_replay.*_file": Absent("experts go with the episodes, not by file"),
    f"{ROLLOUT}.engine_kwargs.*.chat_template": refused("give it as model.chat_template"),
    f"{ROLLOUT}.trace.*": Absent("a trace has all episodes, with what was said"),
    f"{ROLLOUT}.skip_*": Absent("`ajet inspect replay` runs a recorded episode again"),
    f"{ROLLOUT}.mode": Absent("every episode runs on its own, async", off=("async", None)),
    **keys_of(ROLLOUT, "agent.num_workers agent.custom_async_server.*", GPUS),
    f"{ROLLOUT}.agent.agent_loop_manager_class": Absent("episodes run in this process"),
    f"{TURNS}.enable": Absent("an agent makes as many calls as it makes", off=(True, *NOTHING)),
    f"{TURNS}.function_tool_path": refused(
        "name each of its functions in the YAML of multi_turn.tool_config_path, as "
        "- function: file.py->name"
    ),
    f"{TURNS}.use_inference_chat_template": Absent("tokens are never rendered again"),
    f"{TURNS}.tokenization_sanity_check_mode": Absent("tokens are never rendered again"),
    f"{TURNS}.num_repeat_rollouts": Absent("rollout.num_repeat counts them"),
    **keys_of(
        ROLLOUT,
        "nnodes n_gpus_per_node full_determinism seed dtype enforce_eager cudagraph_capture_sizes "
        "free_cache_engine data_parallel_size expert_parallel_size pipeline_model_parallel_size "
        "max_num_batched_tokens enable_chunked_prefill enable_prefix_caching logprobs_mode "
        "scheduling_policy load_format layered_summon log_prob_* disable_log_stats "
        "multi_stage_wake_up engine_kwargs.* router_config_path checkpoint_engine.* "
        "skip_tokenizer_init moe_load_balance_metrics_interval "
        "profiler.* prometheus.* quantization* mtp* qat* disaggregation.* server.* "
        "update_weights_bucket_megabytes limit_images sglang_rollout_mode cudagraph_*",
        GPUS,
    ),
    "algorithm.kl_penalty": refused(
        "the KL in the reward is log p - log q", off=("kl", "k1", None)
    ),
    "algorithm.use_pf_ppo": refused("samples are not reweighted"),
    "algorithm.pf_ppo.*": Absent("samples are not reweighted"),
    "algorithm.filter_groups.max_inflight_gen_batches": Absent("rounds come one after another"),
    f"{CORRECTION}.*": refused("no such correction"),
    "algorithm._target_": GPUS,
    "data.train_max_samples": refused("all rows are read", off=(-1, None)),
    "data.reward_fn_key": Absent("ajet.task_judge judges every row"),
    "data.truncation": Absent("a longer first prompt is truncated and counted", off=(None,)),
    "data.filter_overlong_prompts": Absent("a longer first prompt is truncated and counted"),
    "data.filter_overlong_prompts_workers": Absent("prompts are not filtered"),
    "data.return_raw_chat": Absent("agents get messages", off=(True, *NOTHING)),
    "data.custom_cls.*": refused(
        "this class makes the rows: write a BaseTaskReader, and ajet.task_reader.type: "
        "file.py->Class"
    ),
    "data.sampler.*": refused("the order is drawn from the seed"),
    "data.datagen.*": refused("see ajet.task_reader.type: data_generation"),
    "data.tokenizer": Absent("the tokenizer is the model's"),
    "data.gen_batch_size": refused("a step's episodes start together", off=(*NOTHING, 1)),
    "data.val_batch_size": Absent("validation takes all tasks: data.val_max_tasks"),
    "data.validation_shuffle": Absent("held-out tasks keep their order"),
    "data.*tool*_path": Absent("tools are in multi_turn.tool_config_path"),
    "data.image_key": Absent("set ajet.model.images.enabled if the model sees images"),
    "data.image_patch_size": Absent("the model's image processor has it", off=(14, None)),
    "data.video_*": Absent("text and images alone", off=(*NOTHING, "videos")),
    "data.audio_*": Absent("text and images alone", off=(*NOTHING, "audios")),
    **keys_of(
        "data",
        "use_shm return_raw_input_ids return_full_prompt dataloader_num_workers "
        "trust_remote_code return_multi_modal_inputs mm_processor_kwargs*",
        Absent("rows are read without changes"),
    ),
    "critic.optim.lr_warmup_*": Absent("the critic's rate is constant", off=(-1, 0, None)),
    "critic.optim.lr_scheduler_type": refused(
        "the critic's rate is constant", off=("constant", None)
    ),
    **keys_of(
        "critic",
        "optim.* fsdp.* model.* nccl_timeout strategy enable rollout_n megatron.* checkpoint.* "
        "profiler.* "
        "*micro_batch* use_dynamic_bsz *max_token_len_per_gpu shuffle data_loader_seed "
        "loss_scale_factor ulysses_sequence_parallel_size veomni.* torchtitan.*",
        Absent("the critic is where training is; it needs its model, rate and passes"),
    ),
    **keys_of("", "reward_model.reward_manager reward.reward_manager.name", MANAGER),
    "reward.reward_manager.*": Absent("ajet.task_judge scores", off=("register", None)),
    "*.reward_kwargs.overlong_buffer_cfg.*": Absent("algorithm.overlong has a length and a factor"),
    "*.reward_kwargs.max_resp_len": Absent("data.max_response_length is the limit"),
    **keys_of("", "reward_model.reward_kwargs.* reward.reward_kwargs.*", MANAGERS_SETTING),
    "reward_model.enable": refused("no reward model: task_judge.judge_protocol: llm asks a model"),
    "reward.reward_model.enable": refused(
        "no reward model: task_judge.judge_protocol: llm asks a model"
    ),
    **keys_of("", "reward_model.* reward.*", Absent("ajet.task_judge scores", off=NOTHING)),
    "custom_reward_function.*": Absent("a judge has its own settings: see above"),
    "sandbox_fusion.*": Absent("programs run in ajet's own sandbox"),
    "distillation.enabled": refused("no teacher"),
    "distillation.*": Absent("no teacher"),
    "async_training.use_rollout_log_probs": Absent("rollout_correction.bypass_mode decides it"),
    f"{ACTOR}.use_rollout_log_probs": Absent("rollout_correction.bypass_mode decides it"),
    "async_training.*": refused("trinity.* says when weights travel"),
    "rollout.n": Absent("actor_rollout_ref.rollout.n counts the episodes of a task"),
    "rollout.total_epochs": Absent("trainer_common.total_epochs counts passes over the tasks"),
    "rollout.total_rollout_steps": refused("trainer_common.total_training_steps counts updates"),
    "trainer.val_only": Absent("`ajet eval` does it"),
    "trainer.rollout_data_dir": Absent("every episode is in the run folder"),
    "trainer.validation_data_dir": Absent("every episode is in the run folder"),
    "trainer.log_val_generations": Absent("every episode is in the run folder: `ajet view`"),
    "trainer.max_critic_ckpt_to_keep": Absent("a checkpoint holds the critic too"),
    "trainer.resume_from_path": Absent("resume_mode does not name it"),
    "trainer.use_v1": Absent("verl's own choice of a trainer"),
    "trainer.v1.trainer_mode": refused("rollout and training take turns here", off=("sync", None)),
    "trainer.v1.*": Absent("rollout and training take turns here"),
    **keys_of(
        "trainer",
        "balance_batch esi_redundant_time checkpoint_callback_class default_hdfs_dir "
        "del_local_ckpt_after_load ray_wait_register_center_timeout device val_generations* "
        "remove_previous_ckpt_in_save max_*_ckpt_to_keep npu_profile.* profile_steps",
        GPUS,
    ),
    "global_profiler.*": Absent("profiling is not built"),
    "skip.*": Absent("`ajet inspect replay` runs a recorded episode again"),
    "hydra*": Absent("Hydra's settings"),
    **keys_of("", "transfer_queue.* ray_* model_engine _target_ *._target_", GPUS),
}
"""For keys that no function and no other table converts; the first matching pattern counts."""
