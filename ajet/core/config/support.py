"""Decides for each key whether the backbone refuses it, nothing reads it, or it is honoured.

Refusals are pairs of a key and the reason; keys that nothing reads map to the setting that is the
reason, and become notices.
"""

from typing import Any

from ajet.core.config.algorithm_support import (
    algorithm_notices,
    contradictions,
    unread_algorithm_keys,
)
from ajet.core.config.precision import precision_refusals, requested_dtype
from ajet.core.config.redacted import redacted_value
from ajet.core.config.section import Leaf, NoEffect, leaves
from ajet.core.config.task_judge import TaskJudgeConfig
from ajet.core.config.tree import AjetConfig, AjetSection
from ajet.core.user_code.plugins import plugins

LLM_JUDGES = ("llm", "llm_listwise")
ENVIRONMENT, TRAJ_AGENT = "ajet.environment", "traj_env_agent"
Refusals = list[tuple[str, str]]


def refusals_and_notices(config: AjetConfig) -> tuple[Refusals, list[str]]:
    """Returns the refused keys with their reasons, and a notice for each key without effect."""
    backbone = config.ajet.backbone
    unread = unread_keys(config.ajet)
    refusals = [
        *contradictions(config.ajet),
        *precision_refusals(config),
        *_mps_refusals(config.ajet),
        *_image_refusals(config),
        *_kept_cache_refusals(config),
        *_background_refusals(config),
        *_float64_refusals(config),
        *_distillation_refusals(config),
        *_preference_refusals(config.ajet),
        *_compaction_refusals(config.ajet),
        *_adapter_refusals(config),
    ]
    unused: list[str] = []
    for root in ("ajet", "verl", "trinity"):
        for leaf in leaves(getattr(config, root), root):
            if leaf.is_default:
                continue
            unused += [
                f"ignored by backbone {backbone}: {leaf.path}={_shown(leaf)} ({mark.reason})"
                for mark in leaf.field.metadata
                if isinstance(mark, NoEffect) and backbone in mark.on
            ]
            # A key below several unread sections gets one notice, with the first reason.
            unused += [
                f"ignored: {leaf.path}={_shown(leaf)} ({text})"
                for section, text in unread.items()
                if f"{leaf.path}.".startswith(f"{section}.")
            ][:1]
    return refusals, [
        *unused,
        *algorithm_notices(config.ajet),
        *_environment_notices(config.ajet),
        *_surplus_mini_batches(config.ajet),
        *_equal_validation_episodes(config.ajet),
        *_unchecked_tool_calls(config.ajet),
        *_unused_retries(config.ajet),
    ]


def unread_keys(ajet: AjetSection) -> dict[str, str]:
    """Returns keys and sections that nothing reads in this run, with the setting that is the
    reason."""
    return _unread_sections(ajet) | unread_algorithm_keys(ajet) | _unread_environment_keys(ajet)


def _unread_sections(ajet: AjetSection) -> dict[str, str]:
    """Returns the sections of readers, kinds and judges that the config does not choose."""
    reader = ajet.task_reader.type
    unread: dict[str, str] = {}
    for name in plugins("ajet.readers"):
        if name != reader and "->" not in reader:  # the user's own reader may read any section
            unread[f"ajet.task_reader.{name}"] = f"ajet.task_reader.type is {reader}"
    for name in ("supervised", "preference", "distillation"):
        if name != ajet.kind:
            unread[f"ajet.{name}"] = f"ajet.kind is {ajet.kind}"
    if not ajet.rollout.compaction.enable:
        names = ("at", "prompt", "max_summary_tokens", "keep_last_messages")
        reason = "ajet.rollout.compaction.enable is false"
        unread |= {f"ajet.rollout.compaction.{name}": reason for name in names}
    if ajet.kind == "distillation" and ajet.distillation.base_url is None:
        names = ("model", "api", "timeout_s", "max_retries", "max_parallel")
        reason = "ajet.distillation.base_url is null"
        unread |= {f"ajet.distillation.{name}": reason for name in names}
    return unread | _unread_judge_keys(ajet.task_judge)


def _unread_judge_keys(judge: TaskJudgeConfig) -> dict[str, str]:
    by_type = f"ajet.task_judge.judge_type is {judge.judge_type}"
    if judge.judge_type == "rubrics_auto_grader":
        return {f"ajet.task_judge.{key}": by_type for key in ("judge_protocol", "llm")}
    unread = {"ajet.task_judge.rubrics_auto_grader": by_type}
    name = judge.judge_protocol
    if name not in LLM_JUDGES and "->" not in (name or ""):  # the user's own may read both sections
        by_name = f"ajet.task_judge.judge_protocol is {name or 'null'}"
        unread |= {f"ajet.task_judge.{key}": by_name for key in ("llm", "client")}
    return unread


def _unread_environment_keys(ajet: AjetSection) -> dict[str, str]:
    reader, section = ajet.task_reader.type, ajet.environment
    if "->" in reader:  # the user's own reader may read any section
        return {}
    if reader != "environment":
        return {ENVIRONMENT: f"ajet.task_reader.type is {reader}"}
    unread = {"ajet.rollout.user_workflow": "each environment's env_manager_cls says who plays"}
    if section.render_save_dir is None:
        unread[f"{ENVIRONMENT}.max_rendered_episodes"] = f"{ENVIRONMENT}.render_save_dir is null"
    if all(environment.isolation != "process" for environment in section.custom_envs.values()):
        for name in ("train_env_manager", "val_env_manager"):
            unread[f"{ENVIRONMENT}.{name}.max_env_num_per_worker"] = "no isolation is process"
    return unread


def _environment_notices(ajet: AjetSection) -> list[str]:
    """Returns a line for each key of a single environment that has no effect."""
    if ajet.task_reader.type != "environment":
        return []
    notices = []
    for tag, custom in ajet.environment.custom_envs.items():
        ignored, written = f"ignored: {ENVIRONMENT}.custom_envs.{tag}", custom.model_fields_set
        if custom.env_manager_cls == TRAJ_AGENT and "history_length" in written:
            notices.append(
                f"{ignored}.history_length={custom.history_length} ({TRAJ_AGENT} shows the whole "
                "conversation)"
            )
        if custom.isolation == "inline" and "step_timeout_s" in written:
            notices.append(
                f"{ignored}.step_timeout_s={custom.step_timeout_s} (isolation is inline)"
            )
    return notices


def _surplus_mini_batches(ajet: AjetSection) -> list[str]:
    num_mini_batches, groups = ajet.trainer_common.mini_batch_num, ajet.data.train_batch_size
    if num_mini_batches <= groups:
        return []
    return [
        f"ajet.trainer_common.mini_batch_num={num_mini_batches}: a step has {groups} groups, "
        f"one for each task, and makes {groups} mini-batches at most (ajet.data.train_batch_size)"
    ]


def _equal_validation_episodes(ajet: AjetSection) -> list[str]:
    number = ajet.trainer_common.val_pass_n
    if number is None or number == 1 or not ajet.rollout.val_kwargs.is_greedy:
        return []
    return [
        f"ajet.trainer_common.val_pass_n={number}: validation is greedy, so the model answers "
        f"alike in all {number} episodes of a task; unless tools or environment are random, set 1, "
        "or ajet.rollout.val_kwargs.temperature above 0"
    ]


def _mps_refusals(ajet: AjetSection) -> Refusals:
    """Returns what the GPU of a Mac cannot do."""
    if ajet.model.device != "mps":
        return []
    refusals: Refusals = []
    if ajet.backbone != "debug":
        reason = f"backbone {ajet.backbone} trains on CPUs and CUDA GPUs: take backbone debug"
        refusals.append(("ajet.model.device", reason))
    if ajet.model.dtype == "float64":
        reason = "MPS has no float64: set float32, or ajet.model.device=cpu"
        refusals.append(("ajet.model.dtype", reason))
    if ajet.rollout.name in ("vllm", "sglang"):
        reason = "servers compute on CPUs and CUDA GPUs: set in_process, or ajet.model.device=cpu"
        refusals.append(("ajet.rollout.name", reason))
    return refusals


def _image_refusals(config: AjetConfig) -> Refusals:
    """Returns where images cannot be shown, or not yet."""
    ajet, images = config.ajet, config.ajet.model.images
    tower = "ajet.model.images.train_tower"
    mode = config.trinity.mode
    refusals: Refusals = []
    is_split = ajet.backbone == "trinity" and mode in ("explore", "train")
    if images.enabled and is_split and config.trinity.buffer.url is not None:
        reason = f"trinity.mode={mode} carries images in a file, on one machine: leave it out"
        refusals.append(("trinity.buffer.url", reason))
    if images.train_tower and not images.enabled:
        refusals.append((tower, "no tower is loaded: set images.enabled=true"))
    if images.train_tower and ajet.trainer_common.lora.rank:
        reason = "adapters are trained alone: set ajet.trainer_common.lora.rank=0, or false"
        refusals.append((tower, reason))
    return refusals


def _kept_cache_refusals(config: AjetConfig) -> Refusals:
    trinity = config.trinity
    if config.ajet.backbone != "trinity" or not trinity.keep_kv_cache:
        return []
    refusals: Refusals = []
    if config.ajet.rollout.name != "in_process":
        reason = "servers drop their cache with new weights: set ajet.rollout.name=in_process"
        refusals.append(("trinity.keep_kv_cache", reason))
    if trinity.mode not in ("both", "explore", "train"):
        reason = f"mode {trinity.mode} has no weights that change while episodes run: set it false"
        refusals.append(("trinity.keep_kv_cache", reason))
    return refusals


def _background_refusals(config: AjetConfig) -> Refusals:
    if not (config.clients_run_episodes and config.saves_in_background(on_gpu=False)):
        return []
    reason = "clients are told what a checkpoint holds, so it must be written: leave it at auto"
    return [("ajet.trainer_common.save_in_background", reason)]


def _preference_refusals(ajet: AjetSection) -> Refusals:
    is_kto = ajet.kind == "preference" and ajet.preference.loss == "kto"
    if not is_kto or ajet.data.train_batch_size > 1:
        return []
    reason = "kto estimates the KL with the prompts of a step's other rows: take several"
    return [("ajet.data.train_batch_size", reason)]


def _distillation_refusals(config: AjetConfig) -> Refusals:
    ajet = config.ajet
    if ajet.kind != "distillation":
        return []
    teacher = ajet.distillation
    refusals: Refusals = []
    teachers = (teacher.path is not None, teacher.base_url is not None, teacher.own_weights)
    if sum(teachers) != 1:
        problem = "several are named" if any(teachers) else "ajet.kind is distillation"
        reason = f"{problem}: name one teacher, by path, base_url or own_weights"
        refusals.append(("ajet.distillation.path", reason))
    if teacher.own_weights and teacher.hint is None:
        reason = "the policy teaches itself nothing that it is not shown: give a hint"
        refusals.append(("ajet.distillation.hint", reason))
    if teacher.base_url is not None and teacher.model is None:
        reason = "ajet.distillation.base_url is set: give the teacher's name on that server"
        refusals.append(("ajet.distillation.model", reason))
    if teacher.base_url is not None and ajet.rollout.temperature != 1:
        reason = "a teacher behind a server gives log-probabilities at temperature 1: set 1"
        refusals.append(("ajet.rollout.temperature", reason))
    if not config.learns_from_rewards:
        reason = "it drops groups by rewards that are not learnt from: set reward_weight, or false"
        if ajet.trainer_common.algorithm.dynamic_sampling.enable:
            refusals.append(("ajet.trainer_common.algorithm.dynamic_sampling.enable", reason))
        if ajet.rollout.enable_oversample:
            refusals.append(("ajet.rollout.enable_oversample", reason))
    return refusals


def _compaction_refusals(ajet: AjetSection) -> Refusals:
    rollout, data = ajet.rollout, ajet.data
    if not rollout.compaction.enable:
        return []
    refusals: Refusals = []
    context = min(rollout.max_model_len, data.max_prompt_length + data.max_response_length)
    reply, summary = rollout.max_response_length_in_one_turn, rollout.compaction.max_summary_tokens
    if summary > reply:
        reason = (
            f"a summary of {summary} tokens is more than a reply may have: raise "
            f"ajet.rollout.max_response_length_in_one_turn ({reply}), or lower this"
        )
        refusals.append(("ajet.rollout.compaction.max_summary_tokens", reason))
    elif reply + summary >= context:
        reason = (
            f"a reply of {reply} tokens (ajet.rollout.max_response_length_in_one_turn) and a "
            f"summary leave no prompt in a context of {context}: lower one, or raise the context"
        )
        refusals.append(("ajet.rollout.compaction.max_summary_tokens", reason))
    if "format_type_1" in rollout.compute_madness_checklist:
        reason = "format_type_1 takes each summary as malformed: leave it out, or compaction.enable"
        refusals.append(("ajet.rollout.compute_madness_checklist", reason))
    return refusals


def _adapter_refusals(config: AjetConfig) -> Refusals:
    ajet = config.ajet
    lora, key = ajet.trainer_common.lora, "ajet.trainer_common.lora.adapters"
    algorithm = ajet.trainer_common.algorithm
    if not lora.adapters:
        return []
    reasons = {
        "a name occurs twice": len(set(lora.adapters)) < len(lora.adapters),
        "lora.rank is 0, so there are no adapters": lora.rank == 0,
        "trinity.mode serve has one adapter for all calls": (
            ajet.backbone == "trinity" and config.trinity.mode == "serve"
        ),
        "rollout.routing_replay is for one adapter, or for all weights": (
            ajet.rollout.routing_replay
        ),
        f"ajet.kind is {ajet.kind}; several learn apart from rewards (reinforcement)": (
            ajet.kind != "reinforcement"
        ),
        f"adv_estimator {algorithm.adv_estimator} needs a critic for each, which backbone debug "
        "alone has": algorithm.estimator.needs_critic and ajet.backbone != "debug",
        "a stage hands over one model; stages with several adapters are not built": (
            config.stage is not None
        ),
    }
    return [(key, reason) for reason, is_so in reasons.items() if is_so]


def _float64_refusals(config: AjetConfig) -> Refusals:
    server = config.ajet.rollout.name
    if requested_dtype(config) != "float64" or server not in ("vllm", "sglang"):
        return []
    reason = (
        f"{server} has no float64: take float32, or let the in-process engine sample "
        "(ajet.rollout.name=in_process)"
    )
    return [("ajet.model.dtype", reason)]


def _unused_retries(ajet: AjetSection) -> list[str]:
    rollout = ajet.rollout
    if rollout.failure_policy == "retry" or "max_retries" not in rollout.model_fields_set:
        return []
    default = type(rollout).model_fields["max_retries"].default
    if rollout.max_retries == default:
        return []
    return [
        f"ignored: ajet.rollout.max_retries={rollout.max_retries} "
        f"(ajet.rollout.failure_policy is {rollout.failure_policy})"
    ]


def _unchecked_tool_calls(ajet: AjetSection) -> list[str]:
    tracker, checks = ajet.context_tracker, ajet.rollout.compute_madness_checklist
    notices = []
    if tracker.log_tool_format_check and "wrong_toolcall" not in checks:
        notices.append(
            "ignored: ajet.context_tracker.log_tool_format_check=True (it needs wrong_toolcall in "
            "ajet.rollout.compute_madness_checklist)"
        )
    if tracker.log_tool_format_error_detail and not tracker.log_tool_format_check:
        notices.append(
            "ignored: ajet.context_tracker.log_tool_format_error_detail=True (it needs "
            "ajet.context_tracker.log_tool_format_check=true)"
        )
    return notices


def _shown(leaf: Leaf) -> Any:
    return redacted_value(leaf.path, leaf.value)
