"""Decides for each key whether the backbone refuses it, nothing reads it, or it is honoured."""

from typing import Any

from ajet.core.config.algorithm_support import (
    algorithm_notices,
    contradictions,
    unread_algorithm_keys,
)
from ajet.core.config.environment_support import environment_notices, unread_environment_keys
from ajet.core.config.precision import asked_dtype, precision_refusals
from ajet.core.config.redacted import redacted_value
from ajet.core.config.section import Leaf, NoEffect, leaves
from ajet.core.config.task_judge import TaskJudgeConfig
from ajet.core.config.task_reader import BUILT_IN_READERS
from ajet.core.config.tree import AjetConfig, AjetSection

LLM_JUDGES = ("llm", "llm_listwise")


def refusals_and_notices(config: AjetConfig) -> tuple[list[tuple[str, str]], list[str]]:
    """Returns refused keys as (key, reason), and one notice for each key that has no effect."""
    backbone = config.ajet.backbone
    unread = unread_keys(config.ajet)
    refused = [
        *contradictions(config.ajet),
        *precision_refusals(config),
        *_mps_refusals(config.ajet),
        *_wide_servers(config),
        *_distillation_refusals(config),
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
            unused += [
                f"ignored: {leaf.path}={_shown(leaf)} ({text})"
                for section, text in unread.items()
                if f"{leaf.path}.".startswith(f"{section}.")
            ][:1]
    return refused, [
        *unused,
        *algorithm_notices(config.ajet),
        *environment_notices(config.ajet),
        *_surplus_mini_batches(config.ajet),
        *_equal_validation_episodes(config.ajet),
        *_unchecked_tool_calls(config.ajet),
        *_unused_retries(config.ajet),
    ]


def unread_keys(ajet: AjetSection) -> dict[str, str]:
    """Returns keys and sections that nothing reads in this run, each with the setting that is the
    reason."""
    return _unread_sections(ajet) | unread_algorithm_keys(ajet) | unread_environment_keys(ajet)


def _unread_sections(ajet: AjetSection) -> dict[str, str]:
    """Returns the sections of readers and judges that are not chosen, with the key that chooses.

    A reader of the user's own may read any of them.
    """
    reader = ajet.task_reader.type
    unused_readers = [] if "->" in reader else [name for name in BUILT_IN_READERS if name != reader]
    unread = {f"ajet.task_reader.{name}": f"ajet.task_reader.type is {reader}" for name in unused_readers}
    kinds = [name for name in ("supervised", "distillation") if name != ajet.kind]
    unread |= {f"ajet.{name}": f"ajet.kind is {ajet.kind}" for name in kinds}
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
    """Returns the judge's keys that nothing reads. A judge of the user's own may read any section
    but the rubrics'."""
    by_type = f"ajet.task_judge.judge_type is {judge.judge_type}"
    if judge.judge_type == "rubrics_auto_grader":
        return {f"ajet.task_judge.{key}": by_type for key in ("judge_protocol", "llm")}
    unread = {"ajet.task_judge.rubrics_auto_grader": by_type}
    name = judge.judge_protocol
    if name not in LLM_JUDGES and "->" not in (name or ""):
        by_name = f"ajet.task_judge.judge_protocol is {name or 'null'}"
        unread |= {f"ajet.task_judge.{key}": by_name for key in ("llm", "client")}
    return unread


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


def _mps_refusals(ajet: AjetSection) -> list[tuple[str, str]]:
    """Returns what the GPU of a Mac cannot do."""
    if ajet.model.device != "mps":
        return []
    refused = list[tuple[str, str]]()
    if ajet.backbone != "debug":
        reason = f"backbone {ajet.backbone} trains on CPUs and CUDA GPUs: take backbone debug"
        refused.append(("ajet.model.device", reason))
    if ajet.model.dtype == "float64":
        reason = "MPS has no float64: set float32, or ajet.model.device=cpu"
        refused.append(("ajet.model.dtype", reason))
    if ajet.rollout.name in ("vllm", "sglang"):
        reason = (
            "servers compute on CPUs and CUDA GPUs: set in_process beside ajet.model.device=mps"
        )
        refused.append(("ajet.rollout.name", reason))
    return refused


def _distillation_refusals(config: AjetConfig) -> list[tuple[str, str]]:
    ajet = config.ajet
    if ajet.kind != "distillation":
        return []
    teacher, refused = ajet.distillation, list[tuple[str, str]]()
    teachers = (teacher.path is not None, teacher.base_url is not None, teacher.own_weights)
    if sum(teachers) != 1:
        problem = "several are named" if any(teachers) else "ajet.kind is distillation"
        reason = f"{problem}: name one teacher, by path, base_url or own_weights"
        refused.append(("ajet.distillation.path", reason))
    if teacher.own_weights and teacher.hint is None:
        reason = "the policy teaches itself nothing that it is not shown: give a hint"
        refused.append(("ajet.distillation.hint", reason))
    if teacher.base_url is not None and teacher.model is None:
        reason = "ajet.distillation.base_url is set: give the teacher's name on that server"
        refused.append(("ajet.distillation.model", reason))
    if teacher.base_url is not None and ajet.rollout.temperature != 1:
        reason = "a teacher behind a server gives log-probabilities at temperature 1: set 1"
        refused.append(("ajet.rollout.temperature", reason))
    selects_by_reward = {
        "ajet.trainer_common.algorithm.dynamic_sampling.enable": (
            ajet.trainer_common.algorithm.dynamic_sampling.enable
        ),
        "ajet.rollout.enable_oversample": ajet.rollout.enable_oversample,
    }
    reason = "it leaves groups out by rewards that are not learnt from: set reward_weight, or false"
    if not config.learns_from_rewards:
        refused += [(key, reason) for key, is_on in selects_by_reward.items() if is_on]
    return refused


def _compaction_refusals(ajet: AjetSection) -> list[tuple[str, str]]:
    rollout, data = ajet.rollout, ajet.data
    if not rollout.compaction.enable:
        return []
    refused = list[tuple[str, str]]()
    context = min(rollout.max_model_len, data.max_prompt_length + data.max_response_length)
    reply, summary = rollout.max_response_length_in_one_turn, rollout.compaction.max_summary_tokens
    if summary > reply:
        reason = (
            f"a summary of {summary} tokens is more than a reply may have: raise "
            f"ajet.rollout.max_response_length_in_one_turn ({reply}), or lower this"
        )
        refused.append(("ajet.rollout.compaction.max_summary_tokens", reason))
    elif reply + summary >= context:
        reason = (
            f"a reply of {reply} tokens (ajet.rollout.max_response_length_in_one_turn) and a "
            f"summary leave no prompt in a context of {context}: lower one, or raise the context"
        )
        refused.append(("ajet.rollout.compaction.max_summary_tokens", reason))
    if "format_type_1" in rollout.compute_madness_checklist:
        reason = "format_type_1 takes each summary as malformed: leave it out, or compaction.enable"
        refused.append(("ajet.rollout.compute_madness_checklist", reason))
    return refused


def _adapter_refusals(config: AjetConfig) -> list[tuple[str, str]]:
    """Returns why several adapters cannot be trained apart with the other settings."""
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


def _wide_servers(config: AjetConfig) -> list[tuple[str, str]]:
    server = config.ajet.rollout.name
    if asked_dtype(config) != "float64" or server not in ("vllm", "sglang"):
        return []
    return [
        (
            "ajet.model.dtype",
            f"{server} has no float64: take float32, or let the in-process "
            "engine sample (ajet.rollout.name=in_process)",
        )
    ]


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
    tracker = ajet.context_tracker
    is_met_by = {
        "log_tool_format_check": "wrong_toolcall" in ajet.rollout.compute_madness_checklist,
        "log_tool_format_error_detail": tracker.log_tool_format_check,
    }
    needed = {
        "log_tool_format_check": "wrong_toolcall in ajet.rollout.compute_madness_checklist",
        "log_tool_format_error_detail": "ajet.context_tracker.log_tool_format_check=true",
    }
    return [
        f"ignored: ajet.context_tracker.{name}=True (it needs {needed[name]})"
        for name, is_met in is_met_by.items()
        if getattr(tracker, name) and not is_met
    ]


def _shown(leaf: Leaf) -> Any:
    return redacted_value(leaf.path, leaf.value)
