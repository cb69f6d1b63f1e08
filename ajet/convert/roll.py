"""Converts ROLL's agentic configs. The tables of keys are in roll_keys.py, estimator and loss in
roll_algorithm.py, environments in roll_envs.py.
"""

from typing import Any

from ajet.convert.draft import (
    ENABLED,
    MAX_IMAGES,
    Draft,
    is_tower,
    num_batches,
    take_schedule,
    take_tower,
)
from ajet.convert.roll_algorithm import take_correction, take_estimator, take_loss
from ajet.convert.roll_envs import show_images, take_environments
from ajet.convert.roll_keys import ACTOR, ENGINE, GENERATING, KEYS, PARALLEL, TRAINER, TRAINING
from ajet.convert.source import NotConvertible
from ajet.core.config.renames import staleness_of_ratio
from ajet.core.config.section import device_list

SAMPLING: dict[str, float] = {"temperature": 0.95, "top_p": 0.7, "top_k": 50}
"""ROLL's defaults of its `generating_args`."""
MANAGERS_SAMPLING = ("train_env_manager.generating_args", "val_env_manager.generating_args")
LENGTHS = (
    "ajet.rollout.max_model_len", "ajet.data.max_prompt_length", "ajet.data.max_response_length"
)  # fmt: skip


def take(draft: Draft) -> None:
    for key in ("rewards", "num_return_sequences_in_group"):
        if draft.has_key(key) and not draft.has_key("custom_envs"):
            raise NotConvertible(
                f"{draft.result.source}: {key}: a key of another pipeline: ajet converts ROLL's "
                "agentic configs, which have custom_envs"
            )
    draft.copy_all(KEYS)
    folder, name = draft.take("output_dir"), draft.take("exp_name")
    if folder is not None and name is not None:
        draft.set("ajet.experiment_dir", f"{folder}/{name}", "output_dir", "exp_name")
    _asynchrony(draft)
    _devices(draft)
    _batches(draft)
    _lengths(draft)
    take_estimator(draft)
    take_loss(draft)
    take_correction(draft)
    _sampling(draft)
    _lora(draft)
    draft.set("ajet.task_reader.type", "environment", "custom_envs")
    draft.set("ajet.data.val_max_tasks", None, "val_env_manager.num_env_groups")
    take_environments(draft)
    take_schedule(draft, f"{TRAINING}.lr_scheduler_type", "max_steps")
    _images(draft)


def _asynchrony(draft: Draft) -> None:
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
        draft.to_do("actor_train and actor_infer have separate GPUs: take --backbone trinity")
    elif trainer and engines and draft.number("async_generation_ratio") > 0:
        draft.set("trinity.mode", "colocate", *keys)
    width = draft.number(f"{ACTOR}.model_args.ulysses_size")
    if width > 1:
        target = f"{TRAINER}.ulysses_sequence_parallel_size"
        draft.set(target, width, f"{ACTOR}.model_args.ulysses_size")


def _gpus(draft: Draft, key: str, target: str) -> list[int] | None:
    """Copies the key's GPUs to `target` and returns them; None if that is impossible."""
    numbers = device_numbers(draft.take(key))
    if numbers is not None:
        draft.set(target, numbers, key)
    return numbers


def device_numbers(mapping: Any) -> list[int] | None:
    try:
        return None if mapping is None else device_list(mapping)
    except ValueError:
        return None


def _batches(draft: Draft) -> None:
    """Converts batch sizes: ROLL counts trajectories, ajet counts groups and mini-batches."""
    keys = ("rollout_batch_size", "train_env_manager.group_size")
    rows, group = (draft.number(key) for key in keys)
    draft.set("ajet.data.train_batch_size", max(1, rows // max(1, group)), *keys)
    at_once = "train_env_manager.num_env_groups"
    surplus = draft.number("train_env_manager.group_size_redundancy")
    workers = draft.number(at_once) * (group + surplus)
    draft.set("ajet.rollout.max_env_worker", workers, at_once, keys[1])
    # An update in ROLL takes a number of rows from each device, several times.
    keys = [
        f"{TRAINING}.per_device_train_batch_size",
        f"{TRAINING}.gradient_accumulation_steps",
        "actor_train.device_mapping",
    ]
    per_device, steps = draft.number(keys[0]), draft.number(keys[1])
    mapping = draft.take(keys[2])
    numbers = device_numbers(mapping)
    if mapping is not None and numbers is None:
        draft.leave_out(keys[2], "the devices cannot be counted, so mini_batch_num is unknown")
        return
    # Only data-parallel replicas multiply the batch, so divide by the other kinds of parallelism.
    devices = len(numbers) if numbers else 1
    config = "actor_train.strategy_args.strategy_config"
    for name in ("tensor", "pipeline"):
        devices //= draft.number(f"{config}.{name}_model_parallel_size") or 1
    devices //= draft.number(f"{config}.context_parallel_size") or 1
    update = max(1, per_device * steps * max(1, devices))
    draft.set(f"{TRAINER}.mini_batch_num", num_batches(rows, update), *keys)


def _lengths(draft: Draft) -> None:
    """Converts the length limit; ROLL has one for the whole conversation."""
    tokens = draft.number("sequence_length")
    if not tokens and (response := draft.number("response_length")):
        tokens = (draft.number("prompt_length") or 1024) + response
    if tokens:
        for target in LENGTHS:
            draft.set(target, tokens, "sequence_length", "response_length")


def _sampling(draft: Draft) -> None:
    """Converts the sampling. ROLL uses `actor_infer.generating_args` for training and validation;
    only without them do the settings of the environment managers count."""
    training, validation = MANAGERS_SAMPLING
    section = GENERATING if draft.has_key(GENERATING) else training
    sections = {"ajet.rollout": section}
    if section == training and draft.has_key(validation):
        sections["ajet.rollout.val_kwargs"] = validation
    for name, default in SAMPLING.items():
        for target, source_section in sections.items():
            key = f"{source_section}.{name}"
            value = draft.take(key)
            draft.set(f"{target}.{name}", default if value is None else value, key)
        if len(sections) == 1:
            draft.set(f"ajet.rollout.val_kwargs.{name}", None, f"{section}.{name}")
    key = f"{section}.max_new_tokens"
    draft.copy(key, "ajet.rollout.max_response_length_in_one_turn")
    limit = draft.number(f"{validation}.max_new_tokens") if section == training else 0
    if limit and limit != draft.take(key):
        reason = "replies of validation have the limit of training"
        draft.leave_out(f"{validation}.max_new_tokens", reason)


def _images(draft: Draft) -> None:
    frozen = "actor_train.model_args.freeze_module_prefix"
    modules = draft.take(frozen)
    is_frozen = is_tower(modules.split(",") if isinstance(modules, str) else modules)
    if modules is not None and not is_frozen:
        draft.refuse(frozen, "no part is frozen but the vision tower")
    if not show_images(draft):
        return
    if modules is None:
        adapters = draft.take("actor_train.model_args.lora_target") is not None
        take_tower(draft, frozen, has_adapters=adapters)
    draft.copy(f"{ENGINE}.strategy_args.strategy_config.limit_mm_per_prompt.image", MAX_IMAGES)
    draft.set(ENABLED, True, "custom_envs")


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
