"""Translates keys that have another spelling, and refuses AgentJet's keys that have no counterpart.

A renamed key is taken under its other name; given under both with different values, it is an error.
"""

from collections.abc import Mapping
from typing import Any

from ajet.core.config.async_keys import take_async_keys
from ajet.core.errors import ConfigError

RENAMED = {
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
REMOVED = {
    "ajet.execute_test": "the project's tests do not run inside a training run",
    "ajet.execute_testing_lambda": "the project's tests do not run inside a training run",
}


def apply_renames(values: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `values` with every key under its present name. `defaults` shows which keys were not
    set."""
    values = _deep_copy(values)
    for old, new in RENAMED.items():
        given = _pop(values, old)
        if given is None:
            continue
        present = _get(values, new)
        if present not in (None, given, _get(defaults, new)):
            raise ConfigError(f"{old} and {new} are one key with two values: {given}, {present}")
        _set(values, new, given)
    take_async_keys(values)
    for old, reason in REMOVED.items():
        if _pop(values, old):
            raise ConfigError(f"{old} is refused: {reason}; leave it out")
    return values


def _deep_copy(value: Any) -> Any:
    return {k: _deep_copy(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def _section(values: Any, key: str) -> tuple[Any, str]:
    *sections, name = key.split(".")
    for section in sections:
        values = values.get(section) if isinstance(values, Mapping) else None
    return values, name


def _get(values: Mapping[str, Any], key: str) -> Any:
    section, name = _section(values, key)
    return section.get(name) if isinstance(section, Mapping) else None


def _pop(values: dict[str, Any], key: str) -> Any:
    section, name = _section(values, key)
    return section.pop(name, None) if isinstance(section, dict) else None


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *sections, name = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            return  # not a section: the tree reports it
    values[name] = value
