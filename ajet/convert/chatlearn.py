"""Converts ChatLearn's GRPO: the YAML of `--config-file` and the overrides of its command line. An
episode of ChatLearn is a step of ajet. Megatron's settings are not converted.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ajet.convert.data_files import take_files
from ajet.convert.draft import (
    Absent,
    Choices,
    Default,
    Draft,
    Row,
    defaults_of,
    keys_of,
    num_batches,
    refused,
    resume_mode,
    same_names,
    take_thinking,
)
from ajet.core.workflow.agent_cfg import limits_of, read_agent_cfg

TRAINER = "ajet.trainer_common"
ALGORITHM = f"{TRAINER}.algorithm"
RUN, POLICY, TRAIN = "runtime_args", "models.policy", "models.policy_trainer"

ENGINES = Choices(same_names("vllm sglang"), "no such engine")

KEYS: tuple[Row, ...] = (
    (f"{RUN}.exp_name", "ajet.experiment_name"),
    (f"{RUN}.output_dir", "ajet.experiment_dir"),
    (f"{RUN}.num_episode", f"{TRAINER}.total_training_steps"),
    (f"{RUN}.num_training_epoch", f"{TRAINER}.ppo_epochs", Default(1)),
    (f"{RUN}.save_episode_interval", f"{TRAINER}.save_freq"),
    (f"{RUN}.eval_episode_interval", f"{TRAINER}.test_freq", Default(0)),
    (f"{RUN}.enable_eval_before_training", f"{TRAINER}.val_before_train"),
    (f"{RUN}.enable_resume_training", f"{TRAINER}.resume", resume_mode),
    (f"{RUN}.data_shuffle", "ajet.data.shuffle"),
    (f"{RUN}.log_args_dict.wandb_project", "ajet.project_name"),
    (f"{RUN}.rollout_backend", "ajet.rollout.name", ENGINES),
    (f"{TRAIN}.seed", "ajet.seed"),
    (f"{TRAIN}.max_token_in_packing", "verl.trainer.max_token_len_per_gpu"),
    (f"{TRAIN}.ulysses_sequence_parallel_size", f"{TRAINER}.ulysses_sequence_parallel_size"),
    (f"{TRAIN}.free_gpu_memory.offload_weights", f"{TRAINER}.fsdp_config.param_offload"),
    (f"{TRAIN}.optimizer.lr", f"{TRAINER}.optim.lr", float, Default(2e-6)),
    (f"{TRAIN}.optimizer.weight_decay", f"{TRAINER}.optim.weight_decay", float, Default(0.01)),
    (f"{TRAIN}.optimizer.clip_grad", f"{TRAINER}.optim.grad_clip", float, Default(1.0)),
    (f"{TRAIN}.neg_clip_ratio", f"{ALGORITHM}.clip_low", float, Default(0.2)),
    (f"{TRAIN}.pos_clip_ratio", f"{ALGORITHM}.clip_high", float, Default(0.2)),
    (f"{TRAIN}.entropy_coef", f"{ALGORITHM}.entropy_coef", float),
    (f"{POLICY}.num_inference_per_prompt", "ajet.rollout.num_repeat", Default(32)),
    (f"{POLICY}.temperature", "ajet.rollout.temperature", float, Default(1.0)),
    (f"{POLICY}.top_p", "ajet.rollout.top_p", float),
    (f"{POLICY}.top_k", "ajet.rollout.top_k"),
    (f"{POLICY}.eval_temperature", "ajet.rollout.val_kwargs.temperature", float, Default(0.6)),
    (f"{POLICY}.eval_top_p", "ajet.rollout.val_kwargs.top_p", float, Default(0.95)),
    (f"{POLICY}.eval_top_k", "ajet.rollout.val_kwargs.top_k", Default(20)),
    (f"{POLICY}.tensor_model_parallel_size", "ajet.rollout.tensor_model_parallel_size"),
    (f"{POLICY}.gpu_memory_utilization", "verl.rollout.gpu_memory_utilization"),
)
DEFAULTS: dict[str, Any] = defaults_of(KEYS) | {
    f"{TRAIN}.optimizer.adam_beta1": 0.9,
    f"{TRAIN}.optimizer.adam_beta2": 0.95,
    f"{TRAIN}.final_clip_ratio": 3.0,
    f"{TRAIN}.kl_coef": 0.0,
}
AGENT_MODULES = (f"{RUN}.agent_modules", f"{POLICY}.agent_modules", "models.agent.agent_modules")

GPUS = Absent("the backbone shares out processes and GPUs")
MODEL = (
    "num_gpu num_cpu gpu_per_process cpu_per_process trainable packing max_token_in_packing "
    "generation_batch_size sync_frequency free_gpu_memory.* replica_dp_size num_replica"
)
"""Keys that each of ChatLearn's models has."""
PENALTY = refused("tokens are sampled without penalties")
ABSENT: dict[str, Absent] = {
    f"{TRAIN}.free_gpu_memory.offload_optimizer_states": Absent(
        "the optimizer's state lies with the weights", off=(False, None)
    ),
    f"{RUN}.task_type": Absent("a row's agent_name says who plays", off=("agent", "chat", None)),
    f"{RUN}.use_rollout_manager": Absent("every episode runs on its own", off=(True, False, None)),
    **keys_of(
        RUN, "use_partial_rollout partial_rollout", refused("an episode is rolled out to its end")
    ),
    f"{RUN}.raw_chat": Absent("agents get messages", off=(True, False, None)),
    f"{RUN}.data_rerank": Absent("a group is trained together"),
    f"{RUN}.data_ratio": refused("rows of several files are not mixed"),
    f"{RUN}.max_replay_episode": Absent("a step trains on its own episodes, as GRPO does there"),
    f"{RUN}.replay_episode_offset": refused("a step trains on its own episodes"),
    f"{RUN}.train_micro_batch_size": Absent(
        "the gradient does not depend on it: max_tokens_per_micro_batch"
    ),
    f"{RUN}.data_checkpoint_path": Absent("checkpoints are in the run folder"),
    f"{RUN}.load_data_checkpoint_iteration": Absent("trainer_common.resume takes a checkpoint"),
    f"{RUN}.log_args_dict.*": Absent("loggers have no settings here"),
    **keys_of(
        RUN,
        "train_backend colocation concurrent_setup debug nsys profiler_dir consumed_samples "
        "max_data_ckpt_nums stream_data_loader_type bucket_size_mb_in_memory_manager "
        "cpu_schedule_strategy policy_to_regroup_queue",
        GPUS,
    ),
    "runtime_env*": GPUS,
    f"{TRAIN}.diff_clip_ratio": refused("a ratio is not cut before it is clipped", off=(10, None)),
    f"{TRAIN}.optimizer.min_lr": refused("the learning rate stays constant"),
    f"{TRAIN}.optimizer.*": Absent("the learning rate stays constant after its warm-up"),
    f"{TRAIN}.train_micro_batch_size": Absent("the gradient does not depend on it"),
    f"{TRAIN}.save_hf": Absent("`ajet` saves what transformers loads", off=(True, None)),
    **keys_of(
        TRAIN,
        f"{MODEL} fsdp_size meta_init groupgemm use_expandable_segments gradient_checkpointing",
        GPUS,
    ),
    "models.ref_policy.load": Absent("the reference is the model that training starts from"),
    "models.ref_policy.*": Absent("the reference is where training is"),
    **keys_of(POLICY, "*presence_penalty *frequency_penalty", PENALTY),
    f"{POLICY}.*repetition_penalty": Absent(PENALTY.reason, off=(1, None), algorithm=True),
    f"{POLICY}.vllm_*": Absent("a row's field is ajet.task_reader.query_field"),
    f"{POLICY}.load": Absent("the policy is the model in training"),
    f"{POLICY}.seq_length": Absent("max_prompt_tokens_length and max_response_tokens_length"),
    f"{POLICY}.max_seq_len_to_capture": GPUS,
    **keys_of(
        POLICY,
        f"{MODEL} is_sync_mode enforce_eager enable_stage_resume max_num_batched_tokens "
        "pipeline_model_parallel_size expert_model_parallel_size seed",
        GPUS,
    ),
    **keys_of("models", "reward.* agent.* rollout_manager.*", GPUS),
    "models.partial_rollout_manager.*": Absent("an episode is rolled out to its end"),
    "hydra*": Absent("Hydra's settings"),
}


def take(draft: Draft) -> None:
    draft.copy_all(KEYS)
    model, engines_model = f"{TRAIN}.load", f"{POLICY}.load"
    if draft.take(f"{RUN}.train_backend") == "megatron" and draft.has_key(engines_model):
        draft.copy(engines_model, "ajet.model.path")
        draft.leave_out(model, f"a checkpoint of Megatron's; the same model is {engines_model}")
    else:
        draft.copy(model, "ajet.model.path")
    take_files(draft, f"{RUN}.data_path", f"{RUN}.eval_data_path")
    draft.set("ajet.data.val_max_tasks", None, f"{RUN}.eval_data_path")
    take_thinking(draft, f"{POLICY}.enable_thinking")
    _batches(draft)
    _loss(draft)
    _lengths(draft)
    _agents(draft)
    _run(draft)


def _batches(draft: Draft) -> None:
    """Converts batch sizes: ChatLearn counts answers, ajet counts tasks: 512 samples of 32 answers
    are 16 tasks."""
    keys = (f"{RUN}.sample_per_episode", f"{POLICY}.num_inference_per_prompt")
    samples, answers = (draft.number(key) for key in keys)
    targets = ("ajet.data.train_batch_size", f"{TRAINER}.mini_batch_num")
    key = f"{RUN}.train_global_batch_size"
    draft.ignore(key)
    if not samples and not draft.unknown(keys[0]):
        advice = "ChatLearn requires it: the tasks of a step, and the optimizer steps of one"
        draft.leave_blank(*targets, key=keys[0], advice=advice)
        return
    draft.set(targets[0], max(1, samples // max(1, answers)), *keys)
    update = draft.number(key) or samples
    draft.set(targets[1], num_batches(samples, update), key, *draft.unknown(keys[0]))


def _loss(draft: Draft) -> None:
    draft.set(f"{ALGORITHM}.adv_estimator", "grpo", "models")
    draft.set(f"{ALGORITHM}.old_logprobs", "trainer", "models.policy_trainer")
    draft.set(f"{ALGORITHM}.rollout_correction.level", "none", "models.policy_trainer")
    betas = [f"{TRAIN}.optimizer.adam_beta{number}" for number in (1, 2)]
    draft.set(f"{TRAINER}.optim.betas", [float(draft.number(key)) for key in betas], *betas)
    clip = f"{TRAIN}.final_clip_ratio"
    sequence = f"{TRAIN}.use_group_sequence_policy"
    if draft.take(sequence):
        draft.set(f"{ALGORITHM}.policy_loss", "gspo", sequence)
        if draft.has_key(clip):
            reason = "ChatLearn cuts a token's loss to this number; gspo has no such bound here"
            draft.refuse(clip, reason)
        draft.ignore(clip)
    else:
        draft.copy(clip, f"{ALGORITHM}.dual_clip", float)
        reason = (
            "ChatLearn cuts a token's loss to this number; written as dual_clip, which cuts it to "
            "as many times the size of a negative advantage"
        )
        draft.refuse(clip, reason)
    kl = f"{TRAIN}.kl_coef"
    coefficient = float(draft.number(kl))
    draft.set(f"{TRAINER}.use_kl_loss", coefficient > 0, kl)
    if coefficient > 0 or draft.unknown(kl):
        draft.set(f"{TRAINER}.kl_loss_coef", coefficient, kl)


def _lengths(draft: Draft) -> None:
    """Converts the length limits. Newer files have two limits, older ones have one for both."""
    prompt_keys = (f"{POLICY}.max_prompt_tokens_length", f"{POLICY}.seq_length")
    response_keys = (
        f"{POLICY}.max_response_tokens_length", f"{POLICY}.max_new_tokens", f"{POLICY}.seq_length"
    )  # fmt: skip
    draft.ignore(*prompt_keys, *response_keys)
    prompt, response = _first_set(draft, prompt_keys), _first_set(draft, response_keys)
    if prompt:
        draft.set("ajet.data.max_prompt_length", draft.number(prompt), prompt)
    if response:
        target = "ajet.rollout.max_response_length_in_one_turn"
        draft.set(target, draft.number(response), response)
    if _is_agentic(draft):
        _conversation_bound(draft)
    elif response:
        draft.set("ajet.data.max_response_length", draft.number(response), response)
        # The older key limits the sum of both.
        keys = [prompt_keys[-1]] if prompt_keys[-1] in (prompt, response) else [prompt, response]
        if all(keys):
            draft.set("ajet.rollout.max_model_len", sum(map(draft.number, keys)), *keys)


def _first_set(draft: Draft, keys: Sequence[str]) -> str:
    """Returns the first of the keys that the source sets, even to an unknown value."""
    return next((key for key in keys if draft.unknown(key) or draft.number(key)), "")


def _conversation_bound(draft: Draft) -> None:
    """Sets the limit of a whole conversation, for which ChatLearn has no key: each graph's cfg has
    one, which also applies at run time. Here it is the largest of them."""
    targets = ("ajet.data.max_response_length", "ajet.rollout.max_model_len")
    data = draft.take(f"{RUN}.data_path")
    cfgs = [read_agent_cfg(path, [Path.cwd()]) for path in _cfg_paths(data)]
    bounds = [limits_of(cfg).get("max_model_len", 0) for cfg in cfgs]
    if not bounds or 0 in bounds:
        draft.leave_blank(
            *targets,
            key=f"{POLICY}.max_response_tokens_length",
            advice="ChatLearn's limit is that of one call; the cfg of the graph (agent_cfg_path of "
            "the rows) bounds a conversation: write its max_total_token_length at both",
        )
        return
    for target in targets:
        draft.set(target, max(bounds), f"{RUN}.data_path")
        draft.result.origins[target] = "max_total_token_length of the rows' agent_cfg_path"


def _cfg_paths(data: Any) -> list[str]:
    """Returns the cfgs that the training rows name, if all of them can be read from here."""
    files = [Path(str(name)) for name in (data if isinstance(data, list) else [data]) if name]
    if not files or not all(file.is_file() for file in files):
        return []
    try:
        rows: list[Any] = []
        for file in files:
            text = file.read_text("utf-8")
            if text.lstrip().startswith("["):
                rows += json.loads(text)
            else:
                rows += [json.loads(line) for line in text.splitlines() if line.strip()]
        paths = list(dict.fromkeys(row["agent_cfg_path"] for row in rows))
    except (ValueError, KeyError, TypeError):  # rows of another form
        return []
    return paths if all(isinstance(path, str) and Path(path).is_file() for path in paths) else []


def _is_agentic(draft: Draft) -> bool:
    return draft.take(f"{RUN}.task_type") == "agent"


def _agents(draft: Draft) -> None:
    """Converts the modules that register graphs, which ChatLearn's own package may import instead.
    Rows name their agent and graph."""
    set_keys = [key for key in AGENT_MODULES if draft.take(key)]
    for key in set_keys:
        names = draft.take(key)
        modules = names if isinstance(names, list) else [names]
        draft.set("ajet.rollout.agent_modules", modules, key)
    if not set_keys and _is_agentic(draft):
        draft.to_do(
            "name the files that @register the graphs of the rows: ajet.rollout.agent_modules"
        )


def _run(draft: Draft) -> None:
    gpus = draft.number(f"{TRAIN}.num_gpu")
    if gpus:
        draft.set(f"{TRAINER}.n_gpus_per_node", min(8, gpus), f"{TRAIN}.num_gpu")
        draft.set(f"{TRAINER}.nnodes", -(-gpus // 8), f"{TRAIN}.num_gpu")
    logs = {"tensorboard": "enable_tensorboard", "wandb": "enable_wandb"}
    keys = [f"{RUN}.log_args_dict.{key}" for key in logs.values()]
    names = [name for name, key in zip(logs, keys, strict=True) if draft.take(key)]
    if names:
        draft.set(f"{TRAINER}.logger", names, *keys)
    judge = "ajet.task_judge.judge_protocol"
    draft.result.values[judge] = "math"
    draft.result.origins[judge] = "models.reward: by data_source in ChatLearn"
    draft.to_do(
        "ChatLearn scores a row by the rule of its data_source: judge_protocol: math is for GSM8K "
        f"and MATH; for other data choose a judge at {judge}"
    )
