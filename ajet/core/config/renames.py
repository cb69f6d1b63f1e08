"""Translates keys that have another spelling, and removes AgentJet's that have no counterpart.

A key that is set under both of its names, with different values, is an error.
"""

import math
from collections.abc import Mapping
from typing import Any

from ajet.core.config.agentjet_keys import ABSENT, EMPTIED, MOVED, OTHER_NAMES
from ajet.core.config.nested import get_key, set_key
from ajet.core.errors import ConfigError, KeysConflict
from ajet.core.errors.codes import Code

RENAMED = {
    **MOVED,
    "ajet.trainer_common.trinity_only__n_vllm_engine": "ajet.rollout.n_vllm_engine",
    "ajet.environment.train_env_manager.num_env_groups": "ajet.data.train_batch_size",
    "ajet.environment.train_env_manager.group_size": "ajet.rollout.num_repeat",
    "ajet.environment.train_env_manager.group_size_redundancy": (
        "ajet.rollout.group_size_redundancy"
    ),
    "ajet.environment.val_env_manager.group_size": "ajet.trainer_common.val_pass_n",
    "ajet.rollout.gamma": "ajet.trainer_common.algorithm.step_reward_gamma",
    "ajet.task_reader.feedback_tracing": "ajet.task_reader.tracing",
    "ajet.trainer_common.total_steps": "ajet.trainer_common.total_training_steps",
}
JUDGE = "ajet.task_judge"
JUDGE_MODELS: Mapping[tuple[str, ...], str] = {
    ("rubrics_auto_grader",): "rubrics_auto_grader.model_name",
    ("llm", "llm_listwise"): "llm.model_name",
    (): "alien_llm_model",
}
"""Former keys of the judging model, by the judges that read them; the last one is the user's."""
RATIO, SECTION = "async_generation_ratio", "async_training"
KNOWN = ("trigger_parameter_sync_step", "staleness_threshold", "partial_rollout")
WITHOUT_EFFECT = {"require_batches": 1, "use_rollout_log_probs": True}
"""These values describe what is always so here; they are accepted and ignored."""


def apply_renames(
    values: dict[str, Any], defaults: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Returns `values` with every key under its present name, and a notice for each key that was
    removed."""
    values = _deep_copy(values)  # the caller composes each stage from the same values
    notices = take_absent(values)
    for old, new in RENAMED.items():
        value = _pop(values, old)
        if value is None:
            continue
        present = get_key(values, new)
        # The composed values contain the defaults, so a default counts as not set.
        if present not in (None, value, get_key(defaults, new)):
            raise KeysConflict(f"{old} and {new} are one key with two values: {value}, {present}")
        set_key(values, new, value)
    notices += take_judge_models(values)
    take_async_keys(values)
    for (key, theirs), ours in OTHER_NAMES.items():
        if get_key(values, key) == theirs:
            set_key(values, key, ours)
    if get_key(values, "ajet.lora") == {}:  # all of AgentJet's keys of it have been renamed
        _pop(values, "ajet.lora")
    return values, notices


def take_judge_models(values: dict[str, Any]) -> list[str]:
    """Moves the former key of the judge's model to `model_name`, in place. Returns a
    notice for each one that is another judge's."""
    section = get_key(values, JUDGE)
    if not isinstance(section, dict):
        return []
    by_rubrics = section.get("judge_type") == "rubrics_auto_grader"
    judge = "rubrics_auto_grader" if by_rubrics else section.get("judge_protocol")
    owner = next((judges for judges in JUDGE_MODELS if judge in judges), ())
    notices = []
    for judges, name in JUDGE_MODELS.items():
        old, new = f"{JUDGE}.{name}", f"{JUDGE}.model_name"
        value = _pop(values, old)
        if value is None:
            continue
        if judges != owner:
            notices.append(f"ignored: {old}={value} (another judge's; this one's is {new})")
            continue
        present = section.setdefault("model_name", None)
        if present not in (None, value):
            raise KeysConflict(f"{old} and {new} are one key with two values: {value}, {present}")
        section["model_name"] = value
    return notices


def take_absent(values: dict[str, Any]) -> list[str]:
    """Removes the keys that have no counterpart, in place, and returns a notice for each one whose
    value had a meaning. Raises ConfigError for those that would change the experiment."""
    notices, refused = [], dict[str, list[str]]()
    for key, absent in ABSENT.items():
        value = _pop(values, key)
        if value is None or value in absent.off:
            continue
        if absent.refused:
            refused.setdefault(absent.reason, []).append(f"{key}={value}")
        else:
            notices.append(f"ignored: {key}={value} ({absent.reason})")
    if refused:
        # Keys that are refused for one reason share a sentence.
        lines = [
            f"{' and '.join(keys)} {'are' if len(keys) > 1 else 'is'} refused: {reason}"
            for reason, keys in refused.items()
        ]
        advice = "leave it out" if sum(map(len, refused.values())) == 1 else "leave them out"
        raise ConfigError(f"{'; '.join(lines)}; {advice}", code=Code.KEY_REFUSED)
    for section in EMPTIED:
        if get_key(values, section) == {}:
            _pop(values, section)
    return notices


def staleness_of_ratio(ratio: float) -> int:
    """Returns the staleness for ROLL's ratio. ROLL generates `ratio` batches ahead; a part of one
    makes tokens one update old."""
    return math.ceil(ratio)


def staleness_of_threshold(threshold: float, interval: int) -> int:
    """Returns the staleness for verl's threshold. verl generates at most 1 + threshold times what
    is trained between two transfers of weights, which are `interval` updates apart."""
    # 1e-9: (1 + 0.1) * 10 is 11.000000000000002, whose ceiling would be 12.
    return max(0, math.ceil((1 + threshold) * interval - 1e-9) - 1)


def take_async_keys(values: dict[str, Any]) -> None:
    """Moves ROLL's and verl's keys of asynchronous training to `trinity:`, in place. They are
    accepted at the top level, as in those systems, or under `ajet:`.

    async_generation_ratio: 1                                  trinity.max_staleness: 1
    async_training: {trigger_parameter_sync_step: 4,           synchronizer.sync_interval: 4
                     staleness_threshold: 0.1,                 max_staleness: 4 (ceil(1.1 x 4) - 1)
                     partial_rollout: false}                   partial_rollout: finish
    """
    ajet = values.get("ajet")
    mappings = [values, ajet] if isinstance(ajet, dict) else [values]
    for mapping in mappings:
        if (ratio := mapping.pop(RATIO, None)) is not None:
            _set_trinity(values, "max_staleness", staleness_of_ratio(_number(RATIO, ratio)), RATIO)
        if (section := mapping.pop(SECTION, None)) is not None:
            _take_section(values, section)


def _take_section(values: dict[str, Any], section: Any) -> None:
    if not isinstance(section, Mapping):
        raise ConfigError(
            f"{SECTION}: a section is expected, got {section!r}", code=Code.WRONG_VALUE
        )
    for key, value in section.items():
        if key not in KNOWN and WITHOUT_EFFECT.get(key, math.nan) != value:
            raise ConfigError(
                f"{SECTION}.{key}={value} is refused: it has no counterpart; leave it out "
                f"(taken are {', '.join(KNOWN)})",
                code=Code.KEY_REFUSED,
            )
    interval = int(_number(SECTION, section.get(KNOWN[0], 1)))
    threshold = _number(SECTION, section.get(KNOWN[1], 0))
    staleness = staleness_of_threshold(threshold, interval)
    _set_trinity(values, "max_staleness", staleness, SECTION)
    _set_trinity(values, "synchronizer.sync_interval", interval, SECTION)
    if (partial := section.get(KNOWN[2])) is not None:
        _set_trinity(values, "partial_rollout", "continue" if partial else "finish", SECTION)


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(
            f"{key}: a number from 0 is expected, got {value!r}", code=Code.WRONG_VALUE
        )
    return value


def _set_trinity(values: dict[str, Any], key: str, value: Any, source: str) -> None:
    defaults = {"synchronizer.sync_interval": 1, "partial_rollout": "continue"}
    present = get_key(values, f"trinity.{key}")
    if present not in (None, value, defaults.get(key)):
        raise KeysConflict(
            f"{source} and trinity.{key} are one key with two values: {value}, {present}"
        )
    set_key(values, f"trinity.{key}", value)


def _deep_copy(value: Any) -> Any:
    return {k: _deep_copy(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def _pop(values: dict[str, Any], key: str) -> Any:
    path, _, name = key.rpartition(".")
    section = get_key(values, path)
    return section.pop(name, None) if isinstance(section, dict) else None
