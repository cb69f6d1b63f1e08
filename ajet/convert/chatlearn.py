"""Converts ChatLearn's GRPO: the YAML of `--config-file` and the overrides of its command line.

    runtime_args.sample_per_episode: 512     32 answers a prompt: 16 tasks a step, num_repeat 32
    runtime_args.num_episode: 200            trainer_common.total_training_steps
    models.policy_trainer.*                  trainer_common
    models.policy.*                          rollout

An episode of ChatLearn is a step of ajet. Its rows name their agent and graph, which ajet runs once
`ajet.rollout.agent_modules` names the file that registers it.
Not covered: Megatron's own settings.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ajet.convert.data_files import take_files
from ajet.convert.draft import Absent, Draft, keys_of
from ajet.core.workflow.agent_cfg import limits_of, read_agent_cfg

TRAINER = "ajet.trainer_common"
ALGORITHM = f"{TRAINER}.algorithm"
RUN, POLICY, TRAIN = "runtime_args", "models.policy", "models.policy_trainer"

DEFAULTS: dict[str, Any] = {
    f"{RUN}.num_training_epoch": 1,
    f"{RUN}.eval_episode_interval": 0,
    f"{TRAIN}.optimizer.lr": 2e-6,
    f"{TRAIN}.optimizer.weight_decay": 0.01,
    f"{TRAIN}.optimizer.adam_beta1": 0.9,
    f"{TRAIN}.optimizer.adam_beta2": 0.95,
    f"{TRAIN}.optimizer.clip_grad": 1.0,
    f"{TRAIN}.pos_clip_ratio": 0.2,
    f"{TRAIN}.neg_clip_ratio": 0.2,
    f"{TRAIN}.final_clip_ratio": 3.0,
    f"{TRAIN}.kl_coef": 0.0,
    f"{POLICY}.num_inference_per_prompt": 32,
    f"{POLICY}.temperature": 1.0,
    f"{POLICY}.eval_temperature": 0.6,
    f"{POLICY}.eval_top_p": 0.95,
    f"{POLICY}.eval_top_k": 20,
}

SAME = {
    f"{RUN}.exp_name": "ajet.experiment_name",
    f"{RUN}.output_dir": "ajet.experiment_dir",
    f"{RUN}.num_episode": f"{TRAINER}.total_training_steps",
    f"{RUN}.num_training_epoch": f"{TRAINER}.ppo_epochs",
    f"{RUN}.save_episode_interval": f"{TRAINER}.save_freq",
    f"{RUN}.eval_episode_interval": f"{TRAINER}.test_freq",
    f"{RUN}.enable_eval_before_training": f"{TRAINER}.val_before_train",
    f"{RUN}.data_shuffle": "ajet.data.shuffle",
    f"{RUN}.log_args_dict.wandb_project": "ajet.project_name",
    f"{TRAIN}.load": "ajet.model.path",
    f"{TRAIN}.seed": "ajet.seed",
    f"{TRAIN}.max_token_in_packing": "verl.trainer.max_token_len_per_gpu",
    f"{TRAIN}.ulysses_sequence_parallel_size": f"{TRAINER}.ulysses_sequence_parallel_size",
    f"{TRAIN}.free_gpu_memory.offload_weights": f"{TRAINER}.fsdp_config.param_offload",
    f"{POLICY}.top_k": "ajet.rollout.top_k",
    f"{POLICY}.eval_top_k": "ajet.rollout.val_kwargs.top_k",
    f"{POLICY}.tensor_model_parallel_size": "ajet.rollout.tensor_model_parallel_size",
    f"{POLICY}.num_inference_per_prompt": "ajet.rollout.num_repeat",
    f"{POLICY}.gpu_memory_utilization": "verl.rollout.gpu_memory_utilization",
}
AS_FLOAT = {
    f"{TRAIN}.optimizer.lr": f"{TRAINER}.optim.lr",
    f"{TRAIN}.optimizer.weight_decay": f"{TRAINER}.optim.weight_decay",
    f"{TRAIN}.optimizer.clip_grad": f"{TRAINER}.optim.grad_clip",
    f"{TRAIN}.neg_clip_ratio": f"{ALGORITHM}.clip_low",
    f"{TRAIN}.pos_clip_ratio": f"{ALGORITHM}.clip_high",
    f"{TRAIN}.entropy_coef": f"{ALGORITHM}.entropy_coef",
    f"{POLICY}.temperature": "ajet.rollout.temperature",
    f"{POLICY}.top_p": "ajet.rollout.top_p",
    f"{POLICY}.eval_temperature": "ajet.rollout.val_kwargs.temperature",
    f"{POLICY}.eval_top_p": "ajet.rollout.val_kwargs.top_p",
}
AGENT_MODULES = (
    f"{RUN}.agent_modules",
    f"{POLICY}.agent_modules",
    "models.agent.agent_modules",
)
ENGINES = {"vllm": "vllm", "sglang": "sglang"}

GPUS = Absent("the backbone shares out processes and GPUs")
MODEL = (
    "num_gpu num_cpu gpu_per_process cpu_per_process trainable packing max_token_in_packing "
    "generation_batch_size sync_frequency free_gpu_memory.* replica_dp_size num_replica"
)
"""Keys that each of ChatLearn's models has."""
PENALTY = Absent("tokens are sampled as the model has them", algorithm=True)
ABSENT: dict[str, Absent] = {
    f"{TRAIN}.free_gpu_memory.offload_optimizer_states": Absent(
        "the optimizer's state lies with the weights", off=(False, None)
    ),
    f"{RUN}.task_type": Absent("a row's agent_name says who plays", off=("agent", "chat", None)),
    f"{RUN}.use_rollout_manager": Absent("every episode runs on its own", off=(True, False, None)),
    f"{RUN}.use_partial_rollout": Absent("an episode is rolled out to its end", algorithm=True),
    f"{RUN}.raw_chat": Absent("agents get messages", off=(True, False, None)),
    f"{RUN}.data_rerank": Absent("a group is trained together"),
    f"{RUN}.data_ratio": Absent("rows of several files are not mixed", algorithm=True),
    f"{RUN}.max_replay_episode": Absent("a step trains on its own episodes, as GRPO does there"),
    f"{RUN}.replay_episode_offset": Absent("a step trains on its own episodes", algorithm=True),
    f"{RUN}.train_micro_batch_size": Absent(
        "the gradient does not depend on it: max_tokens_per_micro_batch"
    ),
    f"{RUN}.data_checkpoint_path": Absent("checkpoints are in the run folder"),
    f"{RUN}.load_data_checkpoint_iteration": Absent("trainer_common.resume takes a checkpoint"),
    f"{RUN}.log_args_dict.*": Absent("a logger has no settings of its own here"),
    **keys_of(
        RUN,
        "train_backend colocation concurrent_setup debug nsys profiler_dir consumed_samples "
        "max_data_ckpt_nums stream_data_loader_type bucket_size_mb_in_memory_manager "
        "cpu_schedule_strategy policy_to_regroup_queue",
        GPUS,
    ),
    "runtime_env*": GPUS,
    f"{TRAIN}.diff_clip_ratio": Absent(
        "a ratio is not cut before it is clipped", off=(10, None), algorithm=True
    ),
    f"{TRAIN}.optimizer.min_lr": Absent("the learning rate stays constant", algorithm=True),
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
    f"{POLICY}.*presence_penalty": PENALTY,
    f"{POLICY}.*frequency_penalty": PENALTY,
    f"{POLICY}.*repetition_penalty": Absent(PENALTY.reason, off=(1, None), algorithm=True),
    f"{POLICY}.enable_thinking": Absent(
        "the template is not changed: Qwen3's thinks", off=(True, None), algorithm=True
    ),
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
    "models.reward.*": GPUS,
    "models.agent.*": GPUS,
    "models.rollout_manager.*": GPUS,
    "models.partial_rollout_manager.*": Absent("an episode is rolled out to its end"),
    "hydra*": Absent("settings of Hydra's own"),
}


def take(draft: Draft) -> None:
    """Converts every key that has a counterpart."""
    for key, target in SAME.items():
        draft.copy(key, target)
    for key, target in AS_FLOAT.items():
        draft.copy(key, target, float)
    take_files(draft, f"{RUN}.data_path", f"{RUN}.eval_data_path")
    _batches(draft)
    _loss(draft)
    _lengths(draft)
    _agents(draft)
    _run(draft)


def _batches(draft: Draft) -> None:
    """Converts batch sizes: ChatLearn counts answers, ajet counts tasks."""
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
    draft.set(targets[1], max(1, -(-samples // max(1, update))), key, *draft.unknown(keys[0]))


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
            draft.leave_out(clip, reason, algorithm=True)
        draft.ignore(clip)
    else:
        draft.copy(clip, f"{ALGORITHM}.dual_clip", float)
        reason = (
            "ChatLearn cuts a token's loss to this number; written as dual_clip, which cuts it to "
            "as many times the size of a negative advantage"
        )
        draft.leave_out(clip, reason, algorithm=True)
    kl = f"{TRAIN}.kl_coef"
    coefficient = float(draft.number(kl))
    draft.set(f"{TRAINER}.use_kl_loss", coefficient > 0, kl)
    if coefficient > 0 or draft.unknown(kl):
        draft.set(f"{TRAINER}.kl_loss_coef", coefficient, kl)


def _lengths(draft: Draft) -> None:
    """Converts the limits of length. Newer files have two limits, older ones have one for both."""
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
        # The older key bounds both together.
        keys = [prompt_keys[-1]] if prompt_keys[-1] in (prompt, response) else [prompt, response]
        if all(keys):
            draft.set("ajet.rollout.max_model_len", sum(map(draft.number, keys)), *keys)


def _first_set(draft: Draft, keys: Sequence[str]) -> str:
    """Returns the first of the keys that the source sets, whether its value is known or not."""
    return next((key for key in keys if draft.unknown(key) or draft.number(key)), "")


def _conversation_bound(draft: Draft) -> None:
    """Sets the bound of a whole conversation, of which ChatLearn's keys know nothing: each graph's
    cfg has its own, which holds in a run too. Here it is the largest."""
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
        rows = [row for file in files for row in _json_rows(file.read_text("utf-8"))]
        paths = list(dict.fromkeys(row["agent_cfg_path"] for row in rows))
    except (ValueError, KeyError, TypeError):  # rows of another form
        return []
    return paths if all(isinstance(path, str) and Path(path).is_file() for path in paths) else []


def _json_rows(text: str) -> list[Any]:
    """Returns the rows of a JSON list, or of JSON lines."""
    if text.lstrip().startswith("["):
        return json.loads(text)
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _is_agentic(draft: Draft) -> bool:
    return draft.take(f"{RUN}.task_type") == "agent"


def _agents(draft: Draft) -> None:
    """Converts the modules that register graphs. ChatLearn itself has them imported by its own
    package, so a config may name none."""
    found = [key for key in AGENT_MODULES if draft.take(key)]
    for key in found:
        names = draft.take(key)
        modules = names if isinstance(names, list) else [names]
        draft.set("ajet.rollout.agent_modules", modules, key)
    if not found and _is_agentic(draft):
        draft.to_do(
            "name the files that @register the graphs of the rows: ajet.rollout.agent_modules"
        )


def _run(draft: Draft) -> None:
    resume = draft.take(f"{RUN}.enable_resume_training")
    if resume is not None:
        value = "auto" if resume else "disable"
        draft.set(f"{TRAINER}.resume", value, f"{RUN}.enable_resume_training")
    draft.choose(f"{RUN}.rollout_backend", "ajet.rollout.name", ENGINES, "no such engine")
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
