"""Converts configs of verl's PPO trainer: its YAML, or the overrides of its command line.

    data.train_batch_size: 256, actor.ppo_mini_batch_size: 64     trainer_common.mini_batch_num: 4
    actor_rollout_ref.rollout.n                                   rollout.num_repeat
    actor_rollout_ref.actor.policy_loss.loss_mode: vanilla        algorithm.policy_loss: ppo
    algorithm.adv_estimator, not written                          gae: verl's default

Defaults are those of verl 0.9. Not covered: Megatron's and the profilers' own settings.
"""

import math
from typing import Any, get_args

from ajet.convert.data_files import take_files
from ajet.convert.draft import NOTHING, Absent, Draft, keys_of
from ajet.convert.schedule import take_schedule
from ajet.core.config.algorithm import Measure
from ajet.core.config.async_keys import staleness_of_threshold

TRAINER = "ajet.trainer_common"
ALGORITHM = f"{TRAINER}.algorithm"
ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"
TURNS = f"{ROLLOUT}.multi_turn"
CORRECTION = "algorithm.rollout_correction"
REWARD_FUNCTIONS = ("custom_reward_function", "reward.custom_reward_function")
OVERLONG = (
    "reward_model.overlong_buffer",
    "reward_model.reward_kwargs.overlong_buffer_cfg",
    "reward.reward_kwargs.overlong_buffer_cfg",
)

DEFAULTS: dict[str, Any] = {
    "data.train_batch_size": 1024,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    f"{ACTOR}.optim.lr": 1e-6,
    f"{ACTOR}.optim.weight_decay": 0.01,
    f"{ACTOR}.optim.lr_warmup_steps": -1,
    f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.0,
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ACTOR}.clip_ratio_low": 0.2,
    f"{ACTOR}.clip_ratio_high": 0.2,
    f"{ACTOR}.clip_ratio_c": 3.0,
    f"{ACTOR}.policy_loss.clip_cov_ratio": 0.0002,
    f"{ACTOR}.policy_loss.clip_cov_lb": 1.0,
    f"{ACTOR}.policy_loss.clip_cov_ub": 5.0,
    f"{ACTOR}.policy_loss.kl_cov_ratio": 0.0002,
    f"{ACTOR}.policy_loss.ppo_kl_coef": 0.1,
    f"{ACTOR}.use_kl_loss": False,
    f"{ACTOR}.kl_loss_coef": 0.001,
    f"{ACTOR}.grad_clip": 1.0,
    f"{ROLLOUT}.n": 1,
    f"{ROLLOUT}.temperature": 1.0,
    f"{ROLLOUT}.val_kwargs.n": 1,
    f"{TURNS}.max_parallel_calls": 1,
    f"{TURNS}.max_tool_response_length": 256,
    "algorithm.adv_estimator": "gae",
    "critic.optim.weight_decay": 0.01,
    "critic.ppo_mini_batch_size": None,
    "trainer.total_epochs": 30,
    "trainer.save_freq": -1,
    "trainer.test_freq": -1,
    "trainer.val_before_train": True,
}

SAME = {
    "data.train_batch_size": "ajet.data.train_batch_size",
    "data.max_prompt_length": "ajet.data.max_prompt_length",
    "data.max_response_length": "ajet.data.max_response_length",
    "data.shuffle": "ajet.data.shuffle",
    "data.seed": "ajet.seed",
    "data.prompt_key": "ajet.task_reader.query_field",
    f"{MODEL}.path": "ajet.model.path",
    f"{MODEL}.custom_chat_template": "ajet.model.chat_template",
    f"{ACTOR}.ppo_epochs": f"{TRAINER}.ppo_epochs",
    f"{ACTOR}.use_kl_loss": f"{TRAINER}.use_kl_loss",
    f"{ACTOR}.kl_loss_coef": f"{TRAINER}.kl_loss_coef",
    f"{ACTOR}.entropy_coeff": f"{ALGORITHM}.entropy_coef",
    f"{ACTOR}.clip_ratio_low": f"{ALGORITHM}.clip_low",
    f"{ACTOR}.clip_ratio_high": f"{ALGORITHM}.clip_high",
    f"{ACTOR}.tau_pos": f"{ALGORITHM}.sapo_tau_pos",
    f"{ACTOR}.tau_neg": f"{ALGORITHM}.sapo_tau_neg",
    f"{ACTOR}.optim.lr": f"{TRAINER}.optim.lr",
    f"{ACTOR}.optim.betas": f"{TRAINER}.optim.betas",
    f"{ACTOR}.optim.weight_decay": f"{TRAINER}.optim.weight_decay",
    f"{ACTOR}.grad_clip": f"{TRAINER}.optim.grad_clip",
    f"{ACTOR}.fsdp_config.param_offload": f"{TRAINER}.fsdp_config.param_offload",
    f"{ACTOR}.fsdp_config.optimizer_offload": f"{TRAINER}.fsdp_config.optimizer_offload",
    f"{ACTOR}.fsdp_config.reshard_after_forward": f"{TRAINER}.fsdp_config.reshard_after_forward",
    f"{MODEL}.enable_gradient_checkpointing": f"{TRAINER}.fsdp_config.activation_checkpointing",
    f"{ACTOR}.ulysses_sequence_parallel_size": f"{TRAINER}.ulysses_sequence_parallel_size",
    f"{ACTOR}.ppo_max_token_len_per_gpu": "verl.trainer.max_token_len_per_gpu",
    f"{ROLLOUT}.n": "ajet.rollout.num_repeat",
    f"{ROLLOUT}.temperature": "ajet.rollout.temperature",
    f"{ROLLOUT}.top_k": "ajet.rollout.top_k",
    f"{ROLLOUT}.tensor_model_parallel_size": "ajet.rollout.tensor_model_parallel_size",
    f"{ROLLOUT}.max_model_len": "ajet.rollout.max_model_len",
    f"{ROLLOUT}.max_num_seqs": "ajet.rollout.max_num_seqs",
    f"{ROLLOUT}.gpu_memory_utilization": "verl.rollout.gpu_memory_utilization",
    f"{ROLLOUT}.val_kwargs.temperature": "ajet.rollout.val_kwargs.temperature",
    f"{ROLLOUT}.val_kwargs.top_k": "ajet.rollout.val_kwargs.top_k",
    f"{ROLLOUT}.val_kwargs.n": f"{TRAINER}.val_pass_n",
    f"{ROLLOUT}.agent.agent_loop_config_path": "ajet.rollout.agent.agent_loop_config_path",
    "algorithm.norm_adv_by_std_in_grpo": f"{ALGORITHM}.normalize_std",
    "algorithm.use_kl_in_reward": f"{ALGORITHM}.use_kl_in_reward",
    "algorithm.kl_ctrl.type": f"{ALGORITHM}.kl_ctrl.type",
    "algorithm.kl_ctrl.kl_coef": f"{ALGORITHM}.kl_ctrl.kl_coef",
    "algorithm.kl_ctrl.horizon": f"{ALGORITHM}.kl_ctrl.horizon",
    "algorithm.kl_ctrl.target_kl": f"{ALGORITHM}.kl_ctrl.target_kl",
    "algorithm.filter_groups.enable": f"{ALGORITHM}.dynamic_sampling.enable",
    "trainer.total_epochs": f"{TRAINER}.total_epochs",
    "trainer.total_training_steps": f"{TRAINER}.total_training_steps",
    "trainer.project_name": "ajet.project_name",
    "trainer.experiment_name": "ajet.experiment_name",
    "trainer.default_local_dir": "ajet.experiment_dir",
    "trainer.logger": f"{TRAINER}.logger",
    "trainer.save_freq": f"{TRAINER}.save_freq",
    "trainer.test_freq": f"{TRAINER}.test_freq",
    "trainer.val_before_train": f"{TRAINER}.val_before_train",
    "trainer.max_actor_ckpt_to_keep": f"{TRAINER}.max_checkpoints_to_keep",
}
AS_FLOAT = {
    "algorithm.gamma": f"{ALGORITHM}.gamma",
    "algorithm.lam": f"{ALGORITHM}.lam",
    f"{ROLLOUT}.top_p": "ajet.rollout.top_p",
    f"{ROLLOUT}.val_kwargs.top_p": "ajet.rollout.val_kwargs.top_p",
}
CRITIC = {
    "critic.model.path": f"{TRAINER}.critic.path",
    "critic.optim.lr": f"{TRAINER}.critic.lr",
    "critic.optim.weight_decay": f"{TRAINER}.critic.weight_decay",
    "critic.grad_clip": f"{TRAINER}.critic.grad_clip",
    "critic.cliprange_value": f"{TRAINER}.critic.cliprange_value",
    "critic.ppo_epochs": f"{TRAINER}.critic.ppo_epochs",
    "trainer.critic_warmup": f"{TRAINER}.critic.warmup_steps",
}
TOOLS = {
    f"{TURNS}.tool_config_path": "tool_config_path",
    f"{TURNS}.interaction_config_path": "interaction_config_path",
    f"{TURNS}.max_assistant_turns": "max_assistant_turns",
    f"{TURNS}.max_user_turns": "max_user_turns",
    f"{TURNS}.max_parallel_calls": "max_parallel_calls",
    f"{TURNS}.tool_response_truncate_side": "tool_response_truncate_side",
}

ESTIMATORS = {
    name: name
    for name in (
        "gae", "grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax",
        "opo", "gigpo", "gdpo",
    )
} | {"grpo_vectorized": "grpo", "rloo_vectorized": "rloo", "grpo_passk": "pass_at_k"}  # fmt: skip
LOSSES = {
    "vanilla": "ppo", "gspo": "gspo", "cispo": "cispo", "gpg": "gpg", "sapo": "sapo",
    "geo_mean": "gmpo", "dppo_tv": "dppo_tv", "dppo_kl": "dppo_kl", "clip_cov": "clip_cov",
    "kl_cov": "kl_cov",
}  # fmt: skip
COVARIANCE = {
    "clip_cov": {
        "clip_cov_ratio": "cov_share", "clip_cov_lb": "clip_cov_low", "clip_cov_ub": "clip_cov_high"
    },
    "kl_cov": {"kl_cov_ratio": "cov_share", "ppo_kl_coef": "kl_cov_coef"},
}  # fmt: skip
"""Maps a loss to its own settings."""
KL_TYPES = {
    "low_var_kl": "low_var_kl", "k3": "low_var_kl", "mse": "k2", "k2": "k2", "mse+": "k2",
    "k2+": "k2", "low_var_kl+": "low_var_kl+", "k3+": "low_var_kl+", "kl+": "k1", "k1+": "k1",
}  # fmt: skip
AGGREGATIONS = (
    "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
)  # fmt: skip
SAPO_AGGREGATION = "seq-mean-token-mean"
ENGINES = {"vllm": "vllm", "sglang": "sglang"}
RESUMES = {"auto": "auto", "disable": "disable"}
CHARACTERS_OF_A_TOKEN = 4
GPUS_OF_A_NODE = 8
"""verl's default number of GPUs of a node."""

GPUS = Absent("the backbone shares out processes and GPUs")
MICRO = Absent("the gradient does not depend on it: max_tokens_per_micro_batch", off=(None,))
ABSENT: dict[str, Absent] = {
    f"{ACTOR}.policy_loss.*": Absent("a setting of a loss that is not built"),
    f"{ACTOR}.loss_scale_factor": Absent(
        "seq-mean-token-sum-norm divides by data.max_response_length", algorithm=True
    ),
    f"{ACTOR}.optim.warmup_style": Absent(
        "the learning rate stays constant after its warm-up",
        off=("constant", None),
        algorithm=True,
    ),
    f"{ACTOR}.optim.optimizer": Absent("AdamW", off=("AdamW", "adam", None), algorithm=True),
    f"{ACTOR}.optim.override_optimizer_config": Absent("AdamW's betas alone", algorithm=True),
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
    f"{MODEL}.lora_adapter_path": Absent("adapters start anew", algorithm=True),
    f"{MODEL}.exclude_modules": Absent("target_modules names the layers", algorithm=True),
    f"{MODEL}.lora.*": Absent("Megatron's adapters; see lora_rank"),
    f"{MODEL}.trust_remote_code": Absent("a model's own code is not run", off=(False, None)),
    f"{MODEL}.tokenizer_path": Absent("the tokenizer is the model's", algorithm=True),
    f"{MODEL}.override_config*": Absent("the model is taken as it is"),
    f"{MODEL}.mtp*": Absent("no prediction of several tokens"),
    **keys_of(
        MODEL,
        "hf_config_path use_shm external_lib "
        "enable_activation_offload use_remove_padding use_liger use_fused_kernels "
        "fused_kernel_options.* tiled_mlp.* fsdp_config.*",
        GPUS,
    ),
    "actor_rollout_ref.ref.model.path": Absent(
        "the reference is the model that training starts from", algorithm=True
    ),
    "actor_rollout_ref.ref.*": Absent("the reference is where training is", off=(None,)),
    "actor_rollout_ref.hybrid_engine": GPUS,
    "actor_rollout_ref.nccl_timeout": GPUS,
    f"{ROLLOUT}.do_sample": Absent("training samples", off=(True, None), algorithm=True),
    f"{ROLLOUT}.val_kwargs.do_sample": Absent(
        "verl's agent loops read val_kwargs.temperature alone"
    ),
    f"{ROLLOUT}.ignore_eos": Absent("a reply ends with the end of turn", algorithm=True),
    f"{ROLLOUT}.over_sample_rate": Absent("rollout.group_size_redundancy is alike", algorithm=True),
    f"{ROLLOUT}.repetition_penalty": Absent(
        "tokens are sampled as the model has them", off=(1, None), algorithm=True
    ),
    f"{ROLLOUT}.prompt_length": Absent("data.max_prompt_length is the limit", off=NOTHING),
    f"{ROLLOUT}.response_length": Absent("data.max_response_length is the limit", off=NOTHING),
    f"{ROLLOUT}.calculate_log_probs": Absent("log-probabilities are always recorded"),
    f"{ROLLOUT}.trace.*": Absent("a trace has all episodes, with what was said"),
    f"{ROLLOUT}.skip_*": Absent("`ajet replay` runs a recorded episode again"),
    f"{ROLLOUT}.mode": Absent("every episode runs on its own, async", off=("async", None)),
    **keys_of(ROLLOUT, "agent.num_workers agent.custom_async_server.*", GPUS),
    f"{ROLLOUT}.agent.agent_loop_manager_class": Absent("episodes run in this process"),
    f"{TURNS}.enable": Absent("an agent makes as many calls as it makes", off=(True, *NOTHING)),
    f"{TURNS}.function_tool_path": Absent(
        "name each of its functions in the YAML of multi_turn.tool_config_path, as "
        "- function: file.py->name",
        algorithm=True,
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
    "algorithm.kl_penalty": Absent(
        "the KL in the reward is log p - log q", off=("kl", "k1", None), algorithm=True
    ),
    "algorithm.use_pf_ppo": Absent("samples are not reweighted", algorithm=True),
    "algorithm.pf_ppo.*": Absent("samples are not reweighted"),
    "algorithm.filter_groups.max_inflight_gen_batches": Absent("rounds come one after another"),
    f"{CORRECTION}.*": Absent("no such correction", algorithm=True),
    "algorithm._target_": GPUS,
    "data.train_max_samples": Absent("all rows are read", off=(-1, None), algorithm=True),
    "data.reward_fn_key": Absent("ajet.task_judge judges every row"),
    "data.truncation": Absent("a longer first prompt is truncated and counted", off=(None,)),
    "data.filter_overlong_prompts": Absent("a longer first prompt is truncated and counted"),
    "data.filter_overlong_prompts_workers": Absent("prompts are not filtered"),
    "data.return_raw_chat": Absent("agents get messages", off=(True, *NOTHING)),
    "data.custom_cls.*": Absent("write a BaseTaskReader: ajet.task_reader.type: file.py->Class"),
    "data.sampler.*": Absent("the order is drawn from the seed", algorithm=True),
    "data.datagen.*": Absent("see ajet.task_reader.type: data_generation", algorithm=True),
    "data.apply_chat_template_kwargs*": Absent("the template is rendered as it is", algorithm=True),
    "data.tokenizer": Absent("the tokenizer is the model's"),
    "data.gen_batch_size": Absent(
        "a step's episodes start together", off=(*NOTHING, 1), algorithm=True
    ),
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
        Absent("rows are read as they are"),
    ),
    "critic.optim.lr_warmup_*": Absent("the critic's rate is constant", off=(-1, 0, None)),
    "critic.optim.lr_scheduler_type": Absent(
        "the critic's rate is constant", off=("constant", None), algorithm=True
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
    "reward_model.reward_manager": Absent("ajet.task_judge scores", off=("naive", None)),
    "reward.reward_manager.*": Absent("ajet.task_judge scores", off=("naive", "register", None)),
    "reward_model.enable": Absent(
        "no reward model: task_judge.judge_protocol: llm asks a model", algorithm=True
    ),
    "reward.reward_model.enable": Absent(
        "no reward model: task_judge.judge_protocol: llm asks a model", algorithm=True
    ),
    "reward_model.*": Absent("ajet.task_judge scores", off=NOTHING),
    "reward.*": Absent("ajet.task_judge scores", off=NOTHING),
    "custom_reward_function.*": Absent("a judge has its own settings: see above"),
    "sandbox_fusion.*": Absent("programs run in ajet's own sandbox"),
    "distillation.enabled": Absent("no teacher", algorithm=True),
    "distillation.*": Absent("no teacher"),
    "async_training.use_rollout_log_probs": Absent("rollout_correction.bypass_mode decides it"),
    f"{ACTOR}.use_rollout_log_probs": Absent("rollout_correction.bypass_mode decides it"),
    "async_training.*": Absent("trinity.* says when weights travel", algorithm=True),
    "rollout.n": Absent("actor_rollout_ref.rollout.n counts the episodes of a task"),
    "rollout.total_epochs": Absent("trainer_common.total_epochs counts passes over the tasks"),
    "rollout.total_rollout_steps": Absent(
        "trainer_common.total_training_steps counts updates", algorithm=True
    ),
    "trainer.val_only": Absent("`ajet eval` does it"),
    "trainer.rollout_data_dir": Absent("every episode is in the run folder"),
    "trainer.validation_data_dir": Absent("every episode is in the run folder"),
    "trainer.log_val_generations": Absent("every episode is in the run folder: `ajet view`"),
    "trainer.max_critic_ckpt_to_keep": Absent("a checkpoint holds the critic too"),
    "trainer.resume_from_path": Absent("resume_mode does not name it"),
    "trainer.use_v1": Absent("verl's own choice of a trainer"),
    "trainer.v1.trainer_mode": Absent(
        "rollout and training take turns here", off=("sync", None), algorithm=True
    ),
    "trainer.v1.*": Absent("rollout and training take turns here"),
    **keys_of(
        "trainer",
        "balance_batch esi_redundant_time checkpoint_callback_class default_hdfs_dir "
        "del_local_ckpt_after_load ray_wait_register_center_timeout device val_generations* "
        "remove_previous_ckpt_in_save max_*_ckpt_to_keep npu_profile.* profile_steps",
        GPUS,
    ),
    "global_profiler.*": Absent("profiling is not built"),
    "skip.*": Absent("`ajet replay` runs a recorded episode again"),
    "transfer_queue.*": GPUS,
    "ray_*": GPUS,
    "model_engine": GPUS,
    "hydra*": Absent("settings of Hydra's own"),
    "_target_": GPUS,
    "*._target_": GPUS,
}


def take(draft: Draft) -> None:
    """Converts every key that has a counterpart."""
    for key, target in SAME.items():
        draft.copy(key, target)
    for key, target in AS_FLOAT.items():
        draft.copy(key, target, float)
    _choices(draft)
    _loss(draft)
    take_files(draft, "data.train_files", "data.val_files")
    _batches(draft)
    _limits(draft)
    _agent(draft)
    _critic(draft)
    _overlong(draft)
    _lora(draft)
    _asynchrony(draft)
    _dtype(draft)
    _devices(draft)
    _reward(draft)


def _choices(draft: Draft) -> None:
    draft.choose(
        "algorithm.adv_estimator", f"{ALGORITHM}.adv_estimator", ESTIMATORS, "not built here"
    )
    _rewards_of_gdpo(draft)
    _kl_loss(draft)
    backend = f"{ROLLOUT}.trace.backend"
    if draft.take(backend) == "mlflow":
        draft.set(f"{TRAINER}.traces", ["mlflow"], backend)
    elif draft.take(backend) is not None:
        draft.leave_out(backend, "traces go to mlflow, or over OTLP (trainer_common.traces)")
    draft.choose(f"{ROLLOUT}.name", "ajet.rollout.name", ENGINES, "no such engine")
    mode, path = draft.take("trainer.resume_mode"), draft.take("trainer.resume_from_path")
    if mode == "resume_path" and path:
        draft.set(f"{TRAINER}.resume", str(path), "trainer.resume_from_path")
    else:
        draft.choose("trainer.resume_mode", f"{TRAINER}.resume", RESUMES, "no such way to resume")


def _batches(draft: Draft) -> None:
    """Converts batch sizes: verl counts the prompts of a mini-batch, ajet counts mini-batches."""
    keys = ("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size")
    tasks, part = (draft.number(key) for key in keys)
    if not tasks and draft.has_key("async_training"):
        required = "async_training.require_batches"  # mini-batches that an update waits for
        tasks = part * (draft.number(required) or 1)
        draft.set(keys[0].replace("data", "ajet.data"), tasks, required, keys[1])
    parts = max(1, -(-tasks // max(1, part)))
    draft.set(f"{TRAINER}.mini_batch_num", parts, *keys)
    _warmup(draft, parts * (draft.number(f"{ACTOR}.ppo_epochs") or 1))
    take_schedule(
        draft,
        f"{ACTOR}.optim.lr_scheduler_type",
        "trainer.total_training_steps",
        f"{ACTOR}.optim.min_lr_ratio",
    )
    limit = draft.number("data.val_max_samples")
    if limit > 0:
        draft.set("ajet.data.val_max_tasks", limit, "data.val_max_samples")
    elif draft.has_key("data.val_max_samples"):
        draft.set("ajet.data.val_max_tasks", None, "data.val_max_samples")
    rounds = draft.number("algorithm.filter_groups.max_num_gen_batches")
    if draft.take("algorithm.filter_groups.enable") and rounds > 0:
        target = f"{ALGORITHM}.dynamic_sampling.max_rounds"
        draft.set(target, rounds, "algorithm.filter_groups.max_num_gen_batches")
    metric, supported_metrics = (
        draft.take("algorithm.filter_groups.metric"),
        (None, "reward", "seq_reward"),
    )
    if draft.take("algorithm.filter_groups.enable") and metric not in supported_metrics:
        reason = "groups are left out where their rewards are equal"
        draft.leave_out("algorithm.filter_groups.metric", reason, algorithm=True)


def _warmup(draft: Draft, updates: int) -> None:
    """Converts the warm-up: verl counts training steps, ajet counts optimizer steps."""
    keys = [f"{ACTOR}.optim.lr_warmup_steps", f"{ACTOR}.optim.lr_warmup_steps_ratio"]
    steps, ratio = (draft.number(key) for key in keys)
    if steps > 0:
        draft.set(f"{TRAINER}.optim.warmup_steps", steps * updates, keys[0])
    elif ratio:
        total = draft.number("trainer.total_training_steps")
        if total:
            warm = int(ratio * total) * updates
            draft.set(f"{TRAINER}.optim.warmup_steps", warm, keys[1])
        else:
            reason = "warmup_steps counts steps, and trainer.total_training_steps is not set"
            draft.leave_out(keys[1], reason, algorithm=True)


def _limits(draft: Draft) -> None:
    """Sets the model's context to what the data allows, unless the source sets it."""
    keys = ("data.max_prompt_length", "data.max_response_length")
    prompt, response = (draft.number(key) for key in keys)
    if draft.take(f"{ROLLOUT}.max_model_len") is None:
        draft.set("ajet.rollout.max_model_len", prompt + response, *keys)
    draft.set("ajet.rollout.max_response_length_in_one_turn", response, keys[1])


def _agent(draft: Draft) -> None:
    """Converts the agent. A row may name its own; otherwise verl's default_agent_loop applies."""
    loop, tools = f"{ROLLOUT}.agent.default_agent_loop", f"{TURNS}.tool_config_path"
    name = draft.take(loop)
    if name is not None and name != "single_turn_agent":
        draft.set("ajet.rollout.user_workflow", name, loop)
    elif draft.take(tools) and draft.take(f"{TURNS}.enable"):
        draft.set("ajet.rollout.user_workflow", "tool_agent", tools)
    if not draft.has_key(TURNS):
        return
    for key, name in TOOLS.items():
        draft.copy(key, f"ajet.rollout.multi_turn.{name}")
    draft.copy(f"{TURNS}.format", "ajet.rollout.tool_parser")
    length = draft.number(f"{TURNS}.max_tool_response_length")
    if not draft.take(tools):
        return
    tokens = max(1, length // CHARACTERS_OF_A_TOKEN)
    name = "ajet.rollout.multi_turn.max_tool_response_length"
    draft.set(name, tokens, f"{TURNS}.max_tool_response_length")
    draft.to_do(
        f"{name} counts tokens, verl's characters ({length}): it was divided by "
        f"{CHARACTERS_OF_A_TOKEN}"
    )


def _critic(draft: Draft) -> None:
    if draft.take("algorithm.adv_estimator") != "gae":
        if draft.has_key("critic") or draft.has_key("trainer.critic_warmup"):
            unread = [key for key in ("critic", "trainer.critic_warmup") if draft.take(key)]
            for key in unread:
                draft.leave_out(key, "adv_estimator has no critic")
        return
    for key, target in CRITIC.items():
        draft.copy(key, target)
    part = draft.number("critic.ppo_mini_batch_size") or draft.number(
        f"{ACTOR}.ppo_mini_batch_size"
    )
    tasks = draft.number("data.train_batch_size")
    parts = max(1, -(-tasks // max(1, part)))
    draft.set(f"{TRAINER}.critic.mini_batch_num", parts, "critic.ppo_mini_batch_size")


def _loss(draft: Draft) -> None:
    """Converts the policy's loss, its old log-probabilities and its importance weights.

    bypass_mode          old is the sampler's; loss_type names the loss, whatever loss_mode says
    otherwise            old is the trainer's; rollout_is weighs a token or a sequence, or nothing
    """
    if _takes_samplers_logprobs(draft):
        draft.set(f"{ALGORITHM}.old_logprobs", "sampler", f"{CORRECTION}.bypass_mode")
        _bypass_loss(draft)
        _aggregation(draft, None)
        return
    draft.set(f"{ALGORITHM}.old_logprobs", "trainer", f"{CORRECTION}.bypass_mode")
    draft.ignore(f"{CORRECTION}.loss_type")  # of the bypass mode alone
    loss = f"{ACTOR}.policy_loss.loss_mode"
    draft.choose(loss, f"{ALGORITHM}.policy_loss", LOSSES, "this loss is not built")
    _bounds_of(draft, draft.take(loss) or "vanilla")
    _aggregation(draft, draft.take(loss))
    _weights(draft)
    _rejection(draft)


def _bounds_of(draft: Draft, loss: str) -> None:
    """Converts the settings that one loss alone reads. clip_ratio_c is the dual clip of vanilla and
    the largest ratio of dppo."""
    if loss.startswith("dppo"):
        draft.copy(f"{ACTOR}.clip_ratio_c", f"{ALGORITHM}.dppo_max_ratio", float)
    _dual_clip(draft, has_one=loss == "vanilla")
    for key, target in COVARIANCE.get(loss, {}).items():
        draft.copy(f"{ACTOR}.policy_loss.{key}", f"{ALGORITHM}.{target}", float)
    if loss in COVARIANCE:
        reason = "verl chooses tokens of a micro-batch, and ajet of a mini-batch"
        draft.leave_out(f"{ACTOR}.policy_loss.loss_mode", reason, algorithm=True)
    covariance_keys = [key for keys in COVARIANCE.values() for key in keys]
    draft.ignore(*(f"{ACTOR}.policy_loss.{key}" for key in covariance_keys))


def _kl_loss(draft: Draft) -> None:
    """Converts the estimator of the KL. verl's k1 has the gradient of log pi, whose mean is 0; ours
    has that of k2, as verl's k1+."""
    key, target = f"{ACTOR}.kl_loss_type", f"{TRAINER}.kl_loss_type"
    if draft.take(key) in ("kl", "k1"):
        draft.set(target, "k1", key)
        reason = "verl's k1 moves nothing on average; written as k1 with the gradient of k2 (k1+)"
        draft.leave_out(key, reason, algorithm=bool(draft.take(f"{ACTOR}.use_kl_loss")))
    else:
        draft.choose(key, target, KL_TYPES, "this estimate is not built")


def _aggregation(draft: Draft, loss: str | None) -> None:
    """Converts how token losses are averaged. verl's sapo and geo_mean have one way, whichever is
    written, and their KL and entropy have the written one."""
    key, target = f"{ACTOR}.loss_agg_mode", f"{ALGORITHM}.loss_agg_mode"
    if loss not in ("sapo", "geo_mean"):
        modes = {name: name for name in AGGREGATIONS}
        draft.choose(key, target, modes, "no such aggregation")
        return
    draft.set(target, SAPO_AGGREGATION, f"{ACTOR}.policy_loss.loss_mode")
    if draft.take(key) != SAPO_AGGREGATION:
        reason = f"verl's {loss} takes {SAPO_AGGREGATION}, and this for KL and entropy alone"
        others = draft.take(f"{ACTOR}.use_kl_loss") or draft.number(f"{ACTOR}.entropy_coeff")
        draft.leave_out(key, reason, algorithm=bool(others))


def _takes_samplers_logprobs(draft: Draft) -> bool:
    """Returns whether verl is in its bypass mode, which is the default of its asynchronous trainer
    alone."""
    written = draft.take(f"{CORRECTION}.bypass_mode")
    return draft.has_key("async_training") if written is None else bool(written)


def _bypass_loss(draft: Draft) -> None:
    """Converts the loss of the bypass mode: PPO's without weights, or REINFORCE with a weight
    pi / sampler that has no gradient and is cut at its threshold.

    That of a token, cut from above, is cispo without a lower bound.
    """
    kind, target = draft.take(f"{CORRECTION}.loss_type"), f"{ALGORITHM}.policy_loss"
    level, bound = f"{CORRECTION}.rollout_is", f"{CORRECTION}.rollout_is_threshold"
    threshold = str(2.0 if draft.take(bound) is None else draft.take(bound))
    draft.set(f"{ALGORITHM}.rollout_correction.level", "none", f"{CORRECTION}.bypass_mode")
    _dual_clip(draft, has_one=kind != "reinforce")
    if _rejection(draft):
        reason = "in bypass_mode verl measures by the policy of each mini-batch; ajet before them"
        draft.leave_out(f"{CORRECTION}.rollout_rs", reason, algorithm=True)
    mode = f"{ACTOR}.policy_loss.loss_mode"
    if draft.take(mode) not in (None, "vanilla", "bypass_mode"):
        draft.leave_out(mode, "verl does not read it: in bypass_mode loss_type names the loss")
    if kind in (None, "ppo_clip"):
        draft.set(target, "ppo", f"{CORRECTION}.loss_type")
        if draft.take(level) is not None:
            draft.leave_out(level, "verl weighs nothing in bypass_mode with ppo_clip: a metric")
    elif kind == "reinforce" and draft.take(level) is None:
        draft.set(target, "gpg", f"{CORRECTION}.loss_type")
    elif kind == "reinforce" and draft.take(level) == "token" and _is_above_one(threshold):
        draft.set(target, "cispo", f"{CORRECTION}.loss_type", level)
        draft.set(f"{ALGORITHM}.clip_low", 1.0, level)
        draft.set(f"{ALGORITHM}.clip_high", float(threshold) - 1, bound)
    else:
        reason = "in bypass_mode: ppo_clip, or reinforce with a token's weight cut above 1"
        draft.leave_out(f"{CORRECTION}.loss_type", reason, algorithm=True)


def _is_above_one(threshold: str) -> bool:
    return "_" not in threshold and float(threshold) > 1


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
        draft.leave_out(f"{CORRECTION}.rollout_is", "token or sequence", algorithm=True)
    else:
        draft.set(f"{target}.level", level, f"{CORRECTION}.rollout_is")
        lower, _, upper = str(draft.take(bound) or 2.0).rpartition("_")
        draft.set(f"{target}.upper", float(upper), bound)
        if lower:
            draft.set(f"{target}.mode", "reject", bound)
            draft.set(f"{target}.lower", float(lower), bound)
        draft.copy(f"{CORRECTION}.rollout_is_batch_normalize", f"{target}.normalize")
    draft.ignore(f"{CORRECTION}.rollout_is_batch_normalize")


def _rejection(draft: Draft) -> bool:
    """Converts rollout_rs: measures between commas, with one threshold for all or one for each.
    Returns whether there was something to convert that could be.

    That of k1 is a range of ratios, sampler / trainer, whose logarithms are our bounds; a single
    number u stands for 1/u and u. verl takes a rejected token out of every mean.
    """
    key, bound = f"{CORRECTION}.rollout_rs", f"{CORRECTION}.rollout_rs_threshold"
    names = [name.strip() for name in str(draft.take(key) or "").split(",") if name.strip()]
    if not names:
        draft.ignore(key, bound)
        return False
    texts = [text.strip() for text in str(draft.take(bound)).split(",")]
    texts = texts * len(names) if len(texts) == 1 else texts
    if unknown := [name for name in names if name not in get_args(Measure)]:
        draft.leave_out(key, f"no measure {unknown[0]}", algorithm=True)
        return False
    if len(texts) != len(names):
        draft.leave_out(bound, f"verl wants one, or {len(names)}", algorithm=True)
        return False
    target = f"{ALGORITHM}.rollout_correction"
    bounds = {name: _rejection_bound(name, text) for name, text in zip(names, texts, strict=True)}
    draft.set(f"{target}.reject", bounds, key, bound)
    draft.set(f"{target}.count_rejected", False, key)
    return True


def _rejection_bound(measure: str, text: str) -> float | list[float]:
    if not measure.endswith("k1"):
        return float(text)
    lower, _, upper = text.rpartition("_")
    return [math.log(float(lower)), math.log(float(upper))] if lower else math.log(float(upper))


def _rewards_of_gdpo(draft: Draft) -> None:
    """Converts the rewards that gdpo compares: names of what the reward function returns."""
    keys, weights = "algorithm.gdpo_reward_keys", "algorithm.gdpo_reward_weights"
    names = list(draft.take(keys) or [])
    given = list(draft.take(weights) or [1.0] * len(names))
    if draft.take("algorithm.adv_estimator") != "gdpo":
        draft.ignore(keys, weights)
    elif not names or len(given) != len(names):
        draft.leave_out(keys, "gdpo needs names, and a weight for each", algorithm=True)
    else:
        pairs = zip(map(str, names), map(float, given), strict=True)
        draft.set(f"{ALGORITHM}.reward_weights", dict(pairs), keys, weights)
        draft.to_do(
            "gdpo's rewards are WorkflowOutput.log_metrics of these names: "
            f"{', '.join(map(str, names))}; a judge can set them"
        )


def _asynchrony(draft: Draft) -> None:
    """Converts how far ahead is generated, and when weights are synchronized."""
    keys = [
        f"async_training.{name}" for name in ("trigger_parameter_sync_step", "staleness_threshold")
    ]
    if not any(map(draft.has_key, keys)):
        return
    interval, threshold = (draft.number(key) for key in keys)
    interval = max(1, int(interval))
    staleness = staleness_of_threshold(threshold, interval)
    draft.set("trinity.synchronizer.sync_interval", interval, keys[0])
    draft.set("trinity.max_staleness", staleness, *keys)
    partial = "async_training.partial_rollout"
    choices = {True: "continue", False: "finish"}
    draft.choose(partial, "trinity.partial_rollout", choices, "true or false")
    draft.to_do("--backbone trinity generates and trains at the same time; others take turns")


def _dtype(draft: Draft) -> None:
    """Converts the dtype that FSDP computes in; shards are float32 here."""
    names = {"bfloat16": "bfloat16", "bf16": "bfloat16", "float32": "float32", "fp32": "float32"}
    section, target = f"{ACTOR}.fsdp_config", f"{TRAINER}.fsdp_config.param_dtype"
    for key in (f"{section}.dtype", f"{section}.mixed_precision.param_dtype"):
        if draft.has_key(key):
            draft.choose(key, target, names, "computed in bfloat16 or float32")


def _devices(draft: Draft) -> None:
    """verl's trainer shares its GPUs with the engines; with `rollout.nnodes` they have their own.

    trainer 1 x 4, rollout 1 x 4      one node of 8 GPUs: verl's pools may share a node
    trainer 2 x 8, rollout 1 x 8      three nodes of 8
    """
    keys = ("trainer.nnodes", "trainer.n_gpus_per_node")
    own = ("rollout.nnodes", "rollout.n_gpus_per_node")
    if not all(map(draft.has_key, own)):
        draft.copy(keys[0], f"{TRAINER}.nnodes")
        draft.copy(keys[1], f"{TRAINER}.n_gpus_per_node")
        return
    nodes, gpus = draft.number(keys[0]) or 1, draft.number(keys[1]) or GPUS_OF_A_NODE
    more, of_each = (draft.number(key) for key in own)
    size = draft.number(f"{ROLLOUT}.tensor_model_parallel_size") or 1
    if nodes == more and gpus + of_each <= GPUS_OF_A_NODE:
        gpus += of_each
    elif gpus == of_each:
        nodes += more
    else:
        draft.leave_out(own[0], f"nodes of {gpus} and of {of_each} GPUs: all have as many here")
        return
    draft.set(f"{TRAINER}.nnodes", nodes, keys[0], own[0])
    draft.set(f"{TRAINER}.n_gpus_per_node", gpus, keys[1], own[1])
    draft.set("ajet.rollout.n_vllm_engine", max(1, more * of_each // size), *own)


def _overlong(draft: Draft) -> None:
    for section in OVERLONG:
        if not draft.section(section).get("enable"):
            continue
        target = f"{ALGORITHM}.overlong"
        draft.set(f"{target}.buffer_len", draft.take(f"{section}.len"), f"{section}.len")
        factor = float(draft.number(f"{section}.penalty_factor") or 1.0)
        draft.set(f"{target}.penalty_factor", factor, f"{section}.penalty_factor")


def _lora(draft: Draft) -> None:
    rank = draft.number(f"{MODEL}.lora_rank")
    names = {"lora_alpha": "alpha", "target_modules": "target_modules"}
    if not rank:
        return draft.ignore(*(f"{MODEL}.{name}" for name in names))
    draft.set(f"{TRAINER}.lora.rank", rank, f"{MODEL}.lora_rank")
    draft.copy(f"{MODEL}.lora_alpha", f"{TRAINER}.lora.alpha", float)
    return draft.copy(f"{MODEL}.target_modules", f"{TRAINER}.lora.target_modules")


def _reward(draft: Draft) -> None:
    """Converts the reward: verl scores by the row's data_source, or by the user's function."""
    for section in REWARD_FUNCTIONS:
        path, name = draft.take(f"{section}.path"), draft.take(f"{section}.name")
        if path:
            name = name or "compute_score"
            draft.leave_out(f"{section}.path", "a judge is a class, see above", algorithm=True)
            draft.to_do(
                f"write a judge that calls {name} of {path}: a BaseJudge whose "
                "compute_reward(workflow_task, workflow_output) returns (reward, is_success); "
                "name it at ajet.task_judge.judge_protocol, as judge.py->Judge"
            )
            return
    origin = "reward_model.reward_manager"
    draft.result.values["ajet.task_judge.judge_protocol"] = "math"
    draft.result.origins["ajet.task_judge.judge_protocol"] = f"{origin}: by data_source in verl"
    draft.to_do(
        "verl scores a row by its data_source: judge_protocol: math is for GSM8K and MATH; for "
        "other data choose a judge at ajet.task_judge.judge_protocol"
    )
