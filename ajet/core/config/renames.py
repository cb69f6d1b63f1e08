"""Translates keys that have another spelling, and removes AgentJet's that have no counterpart.

A key that is set under both of its names, with different values, is an error.
"""

from collections.abc import Mapping
from typing import Any

from ajet.core.config.agentjet_keys import ABSENT, EMPTIED, MOVED, OTHER_NAMES
from ajet.core.config.async_keys import take_async_keys
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


def _deep_copy(value: Any) -> Any:
    return {k: _deep_copy(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def _pop(values: dict[str, Any], key: str) -> Any:
    path, _, name = key.rpartition(".")
    section = get_key(values, path)
    return section.pop(name, None) if isinstance(section, dict) else None
