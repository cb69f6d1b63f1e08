"""A table of verl's keys that have no counterpart, each with the reason. It is used for keys that
no function and no other table converts; the first matching pattern counts.
"""

from ajet.convert.draft import NOTHING, Absent, keys_of, refused
from ajet.convert.verl_keys import ACTOR, CORRECTION, MODEL, ROLLOUT, TURNS

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
    f"{ACTOR}.optim.warmup_style": Absent(
        "the learning rate stays constant after its warm-up",
        off=("constant", None),
        algorithm=True,
    ),
    f"{ACTOR}.optim.optimizer": refused("AdamW", off=("AdamW", "adam", None)),
    **keys_of(
        f"{ACTOR}.optim.override_optimizer_config",
        "*offload* *overlap* use_precision_aware_optimizer",
        GPUS,
    ),
    f"{ACTOR}.optim.override_optimizer_config*": refused("AdamW's betas alone"),
    f"{ACTOR}.optim.lr_decay_style": refused("Megatron's schedule", off=("constant", None)),
    f"{ACTOR}.optim.clip_grad": Absent("verl clips to actor.grad_clip"),
    f"{ACTOR}.optim.*": Absent("the learning rate stays constant after its warm-up"),
    f"{ACTOR}.clip_ratio": Absent("verl clips at clip_ratio_low and clip_ratio_high"),
    f"{ACTOR}.shuffle": Absent("a batch is divided by the seed"),
    f"{ACTOR}.calculate_sum_pi_squared": Absent("no estimator needs it"),
    f"{ACTOR}.calculate_entropy": Absent("entropy is a metric of every step"),
    f"{ACTOR}.*micro_batch*": MICRO,
    f"{ACTOR}.use_dynamic_bsz": MICRO,
    **keys_of(
        ACTOR,
        "strategy rollout_n fsdp_config.* megatron.* veomni.* torchtitan.* checkpoint.* profiler.* "
        "qat.* router_replay.* freeze_vision_tower data_loader_seed use_prefix_grouper "
        "use_torch_compile use_fused_kernels use_remove_padding entropy_from_logits_with_chunking "
        "entropy_from_logits_chunk_size entropy_checkpointing sum_pi_squared_checkpointing "
        "pad_to_length* global_batch_info* load_weight",
        GPUS,
    ),
    f"{MODEL}.lora_adapter_path": refused("adapters are initialized at random"),
    f"{MODEL}.exclude_modules": refused("target_modules names the layers"),
    f"{MODEL}.lora.*": Absent("Megatron's adapters; see lora_rank"),
    f"{MODEL}.trust_remote_code": Absent("a model's own code is not run", off=(False, None)),
    f"{MODEL}.tokenizer_path": refused("the tokenizer is the model's"),
    f"{MODEL}.override_config.attn_implementation": GPUS,
    f"{MODEL}.override_config*": refused("the model's config is not changed"),
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
    "actor_rollout_ref.hybrid_engine": GPUS,
    "actor_rollout_ref.nccl_timeout": GPUS,
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
        "skip_tokenizer_init enable_rollout_routing_replay moe_load_balance_metrics_interval "
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
    "data.apply_chat_template_kwargs*": refused("chat templates take no options"),
    "data.tokenizer": Absent("the tokenizer is the model's"),
    "data.gen_batch_size": refused("a step's episodes start together", off=(*NOTHING, 1)),
    "data.val_batch_size": Absent("validation takes all tasks: data.val_max_tasks"),
    "data.validation_shuffle": Absent("held-out tasks keep their order"),
    "data.*tool*_path": Absent("tools are in multi_turn.tool_config_path"),
    "data.image_*": Absent("text alone", off=(*NOTHING, "images", 14)),
    "data.video_*": Absent("text alone", off=(*NOTHING, "videos")),
    "data.audio_*": Absent("text alone", off=(*NOTHING, "audios")),
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
    "critic.loss_agg_mode": Absent("the critic's loss is a mean of tokens", off=("token-mean",)),
    **keys_of(
        "critic",
        "optim.* fsdp.* model.* nccl_timeout strategy enable rollout_n megatron.* checkpoint.* "
        "profiler.* "
        "*micro_batch* use_dynamic_bsz *max_token_len_per_gpu shuffle data_loader_seed "
        "loss_scale_factor ulysses_sequence_parallel_size veomni.* torchtitan.*",
        Absent("the critic is where training is; it needs its model, rate and passes"),
    ),
    "reward_model.reward_manager": MANAGER,
    "reward.reward_manager.name": MANAGER,
    "reward.reward_manager.*": Absent("ajet.task_judge scores", off=("register", None)),
    "*.reward_kwargs.overlong_buffer_cfg.*": Absent("algorithm.overlong has a length and a factor"),
    "*.reward_kwargs.max_resp_len": Absent("data.max_response_length is the limit"),
    "reward_model.reward_kwargs.*": MANAGERS_SETTING,
    "reward.reward_kwargs.*": MANAGERS_SETTING,
    "reward_model.enable": refused("no reward model: task_judge.judge_protocol: llm asks a model"),
    "reward.reward_model.enable": refused(
        "no reward model: task_judge.judge_protocol: llm asks a model"
    ),
    "reward_model.*": Absent("ajet.task_judge scores", off=NOTHING),
    "reward.*": Absent("ajet.task_judge scores", off=NOTHING),
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
    "transfer_queue.*": GPUS,
    "ray_*": GPUS,
    "model_engine": GPUS,
    "hydra*": Absent("Hydra's settings"),
    "_target_": GPUS,
    "*._target_": GPUS,
}
