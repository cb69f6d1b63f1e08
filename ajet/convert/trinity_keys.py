"""Tables of Trinity-RFT's keys: its defaults, the key of ajet that means the same, and keys without
a counterpart, each with the reason that the result says.

Not covered: keys whose values change (trinity.py).
"""

from typing import Any

from ajet.convert.draft import Absent, keys_of

TRAINER = "ajet.trainer_common"
ALGORITHM = f"{TRAINER}.algorithm"
OPTIMIZER = "algorithm.optimizer"
ENGINE = "explorer.rollout_model"
INPUT = "buffer.explorer_input"
EXPERIENCES = "buffer.trainer_input.experience_buffer"
ACTOR = "trainer.trainer_config.actor_rollout_ref.actor"
CRITIC = "trainer.trainer_config.critic"

DEFAULTS: dict[str, Any] = {
    "mode": "both",
    "algorithm.algorithm_type": "ppo",
    "algorithm.repeat_times": 1,
    f"{OPTIMIZER}.lr": 1e-6,
    f"{OPTIMIZER}.weight_decay": 0.01,
    f"{OPTIMIZER}.betas": [0.9, 0.999],
    f"{OPTIMIZER}.lr_warmup_steps": -1,
    "buffer.batch_size": 1,
    "buffer.total_epochs": 1,
    "explorer.eval_interval": 100,
    "explorer.eval_on_startup": True,
    "explorer.max_timeout": 1800,
    "explorer.max_retry_times": 2,
    "explorer.runner_per_model": 8,
    f"{ENGINE}.engine_num": 1,
    f"{ENGINE}.tensor_parallel_size": 1,
    "synchronizer.sync_method": "nccl",
    "synchronizer.sync_style": "fixed",
    "synchronizer.sync_interval": 1,
    "synchronizer.sync_offset": 0,
    "trainer.save_interval": 0,
    "trainer.grad_clip": 1.0,
    "monitor.monitor_type": "tensorboard",
}

SAME = {
    "project": "ajet.project_name",
    "name": "ajet.experiment_name",
    "algorithm.repeat_times": "ajet.rollout.num_repeat",
    f"{OPTIMIZER}.betas": f"{TRAINER}.optim.betas",
    "model.model_path": "ajet.model.path",
    "model.chat_template_path": "ajet.model.chat_template",
    "cluster.node_num": f"{TRAINER}.nnodes",
    "cluster.gpu_per_node": f"{TRAINER}.n_gpus_per_node",
    "buffer.batch_size": "ajet.data.train_batch_size",
    "buffer.total_epochs": f"{TRAINER}.total_epochs",
    f"{ENGINE}.engine_num": "ajet.rollout.n_vllm_engine",
    f"{ENGINE}.tensor_parallel_size": "ajet.rollout.tensor_model_parallel_size",
    f"{ENGINE}.gpu_memory_utilization": "trinity.rollout.gpu_memory_utilization",
    f"{ENGINE}.tool_call_parser": "ajet.rollout.tool_parser",
    "explorer.eval_interval": f"{TRAINER}.test_freq",
    "explorer.eval_on_startup": f"{TRAINER}.val_before_train",
    "trainer.max_token_len_per_gpu": "trinity.trainer.max_token_len_per_gpu",
    "trainer.ulysses_sequence_parallel_size": f"{TRAINER}.ulysses_sequence_parallel_size",
    "trainer.max_checkpoints_to_keep": f"{TRAINER}.max_checkpoints_to_keep",
    f"{ACTOR}.ppo_epochs": f"{TRAINER}.ppo_epochs",
    f"{ACTOR}.fsdp_config.param_offload": f"{TRAINER}.fsdp_config.param_offload",
}
AS_FLOAT = {
    f"{OPTIMIZER}.lr": f"{TRAINER}.optim.lr",
    f"{OPTIMIZER}.weight_decay": f"{TRAINER}.optim.weight_decay",
    "trainer.grad_clip": f"{TRAINER}.optim.grad_clip",
    "explorer.max_timeout": "ajet.rollout.episode_timeout_s",
}
CRITIC_KEYS = {
    "model.critic_model_path": f"{TRAINER}.critic.path",
    f"{CRITIC}.optim.lr": f"{TRAINER}.critic.lr",
    f"{CRITIC}.optim.weight_decay": f"{TRAINER}.critic.weight_decay",
    f"{CRITIC}.cliprange_value": f"{TRAINER}.critic.cliprange_value",
    f"{CRITIC}.grad_clip": f"{TRAINER}.critic.grad_clip",
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
    f"{OPTIMIZER}.optimizer_type": Absent("AdamW", off=("adam", "adamw", None), algorithm=True),
    **keys_of(OPTIMIZER, "fused foreach", GPUS),
    "algorithm.sample_strategy": Absent(
        "groups are trained in the order of trinity.buffer.priority",
        off=("default", "warmup", None),
        algorithm=True,
    ),
    "algorithm.sample_strategy_args*": Absent("trinity.buffer has the buffer's settings"),
    "algorithm.*_fn": Absent("a part of an algorithm type that is not built", algorithm=True),
    "algorithm.advantage_fn_args.epsilon": Absent("it keeps a division from 0"),
    "algorithm.advantage_fn_args*": Absent("a setting of an estimator", algorithm=True),
    "algorithm.policy_loss_fn_args*": Absent("a setting of a loss", algorithm=True),
    "algorithm.kl_penalty_fn_args*": Absent("kl_penalty_fn is none"),
    "algorithm.kl_loss_fn_args*": Absent("kl_loss_fn is none"),
    "algorithm.entropy_loss_fn_args*": Absent("entropy_loss_fn is none"),
    "model.custom_chat_template": Absent(
        "write it to a file, and name the file at ajet.model.chat_template", algorithm=True
    ),
    "model.min_response_tokens": Absent("a reply may end at once", off=(1, None), algorithm=True),
    "model.enable_prompt_truncation": Absent("a prompt that is too long ends the episode"),
    "model.repetition_penalty": Absent(
        "tokens are sampled as the model has them", off=(1, None), algorithm=True
    ),
    "model.logprobs": RECORDED,
    "model.rope_*": Absent("the model is taken as it is", algorithm=True),
    "model.tinker.*": Absent("the model is trained here", algorithm=True),
    "model.external_model.*": Absent("the model is trained here", algorithm=True),
    "model.trust_remote_code": Absent("a model's own code is not run", off=(False, None)),
    **keys_of("model", "fully_sharded_loras max_cpu_loras", GPUS),
    "cluster.ray_address": GPUS,
    "cluster.*gpu_num*": GPUS,
    "buffer.max_retry_*": ROWS,
    "buffer.trainer_input.auxiliary_buffers*": Absent(
        "a step trains on its own episodes; rows of given replies are a stage of kind supervised",
        algorithm=True,
    ),
    "buffer.trainer_input.sft_warmup*": Absent(
        "write a stage of kind supervised before (ajet.stages)", algorithm=True
    ),
    f"{EXPERIENCES}.replay_buffer.*": Absent(
        "trinity.buffer.max_reuse and priority are alike", algorithm=True
    ),
    f"{EXPERIENCES}.*": ROWS,
    f"{INPUT}.reply_prefix": Absent("a reply begins where the model begins", algorithm=True),
    f"{ENGINE}.enable_thinking": Absent(
        "the template is not changed: Qwen3's thinks", off=(True, None), algorithm=True
    ),
    f"{ENGINE}.chat_template": Absent(
        "write it to a file, and name the file at ajet.model.chat_template", algorithm=True
    ),
    f"{ENGINE}.ignore_eos": Absent("a reply ends with the end of turn", algorithm=True),
    **keys_of(
        ENGINE, "enable_history enable_openai_api enable_auto_tool_choice logprobs", RECORDED
    ),
    f"{ENGINE}.reasoning_parser": Absent("what is thought stays in the reply"),
    f"{ENGINE}.seed": Absent("ajet.seed draws everything"),
    **keys_of(
        ENGINE,
        "use_v1 enforce_eager enable_prefix_caching enable_chunked_prefill dtype nnodes "
        "bundle_indices enable_lora* lora_* model_path name",
        GPUS,
    ),
    "explorer.auxiliary_models": Absent(
        "an agent asks other models by a client of its own; nothing starts them", algorithm=True
    ),
    "explorer.over_rollout.*": Absent("rollout.group_size_redundancy is alike", algorithm=True),
    "explorer.dynamic_timeout.*": Absent("an episode has episode_timeout_s", algorithm=True),
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
    "trainer.trainer_type": OTHER_TRAINER,
    "trainer.trainer_strategy": OTHER_TRAINER,
    "trainer.trainer_config_path": Absent(
        "the settings of that file are not read: set them in ajet.trainer_common", algorithm=True
    ),
    "trainer.trainer_config.*micro_batch*": UNUSED,
    "trainer.trainer_config.*dynamic_bsz": UNUSED,
    "trainer.trainer_config.*token_len_per_gpu": UNUSED,
    "trainer.trainer_config.*fsdp_config*": GPUS,
    "trainer.trainer_config.*megatron*": GPUS,
    "trainer.trainer_config.*strategy": GPUS,
    "trainer.trainer_config.*hybrid_engine": GPUS,
    "trainer.trainer_config.*ulysses_sequence_parallel_size": GPUS,
    "trainer.trainer_config.actor_rollout_ref.model.*": GPUS,
    "trainer.trainer_config.*.checkpoint.*": GPUS,
    "trainer.trainer_config.critic.model.*": GPUS,
    "trainer.trainer_config.actor_rollout_ref.ref.*": GPUS,
    "trainer.trainer_config.trainer.*": GPUS,
    "trainer.trainer_config*": Absent("a setting of verl's trainer", algorithm=True),
    "trainer.use_dynamic_bsz": UNUSED,
    "trainer.fix_actor_microbatch_loss_scale": UNUSED,
    "trainer.save_strategy": GPUS,
    "trainer.save_hf_checkpoint": Absent("`ajet` saves what transformers loads"),
    "trainer.enable_preview": Absent("`ajet view` shows every episode"),
    "trainer.name": GPUS,
    "synchronizer.sync_timeout": GPUS,
    "synchronizer.wait_for_checkpoint": GPUS,
    "monitor.*": Absent("a logger has no settings of its own here"),
    "data_processor.experience_pipeline.operators": Absent(
        "experiences are trained as they are: shape rewards in your judge", algorithm=True
    ),
    "data_processor.experience_pipeline.*": Absent("every episode is in the run folder"),
    "data_processor.task_pipeline*": Absent(
        "tasks are those of the reader, in ajet.data.sampler's order", algorithm=True
    ),
    "data_processor*": Absent("tasks and experiences are taken as they are", algorithm=True),
    "service.*": GPUS,
    "log.*": Absent("the run folder has the log"),
    "stages": Absent("write ajet.stages: each has a name and the keys that differ", algorithm=True),
}
"""A key that is named by no function and in no other table is looked up here; the first pattern
that fits it counts."""
