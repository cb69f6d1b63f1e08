"""ROLL's environments: `custom_envs` and the two managers.

    env_manager_cls: ….StepEnvManager       step_env_agent
    env_config.action_pattern               action_pattern, one group: what is thought has none
    env_config.format_penalty               train_env_manager.format_penalty

Not covered: what is in `env_config` besides; an environment says itself what it takes.
"""

import re
from collections.abc import Mapping
from typing import Any

from ajet.core.config.convert.draft import Draft, LeftOut

ENVIRONMENT = "ajet.environment"
TRAIN = "train_env_manager"
AGENTS = {"TrajEnvManager": "traj_env_agent", "StepEnvManager": "step_env_agent"}
OURS = ("frozen_lake", "sokoban", "webshop")
PLACEHOLDERS = {"{current_observation}": "{observation}", "{current_step}": "{turn_idx}"}
SAME = ("env_type", "max_steps", "max_tokens_per_step", "history_length", "agent_system_template")
ONE_PENALTY = "a manager has one format_penalty, and its environments have others"
IN_ENV_CONFIG = ("action_pattern", "max_steps", "format_penalty", "env_instruction")
DISPLAY = ("render_mode", "grid_lookup", "grid_vocab", "action_lookup", "special_token_list")
PLAIN = ("use_thread_lock", "max_env_step_concurrent", "tag", "config")


def take_environments(draft: Draft) -> None:
    """The environments that are there, then who plays which of them."""
    environments = draft.section("custom_envs")
    for tag, written in environments.items():
        if isinstance(written, Mapping):
            _environment(draft, str(tag), written)
        else:
            key = f"custom_envs.{tag}"
            draft.leave_out(key, "a section is expected for an environment", algorithm=True)
    for name in (TRAIN, "val_env_manager"):
        _manager(draft, name, environments)


def _environment(draft: Draft, tag: str, written: Mapping[str, Any]) -> None:
    key, target = f"custom_envs.{tag}", f"{ENVIRONMENT}.custom_envs.{tag}"
    config = dict(written.get("env_config") or {})
    for name in SAME:
        if written.get(name) is not None:
            draft.set(f"{target}.{name}", written[name], f"{key}.{name}")
    if "max_steps" not in written and config.get("max_steps"):
        draft.set(f"{target}.max_steps", config["max_steps"], f"{key}.env_config.max_steps")
    _agent(draft, key, target, written)
    _texts(draft, key, target, written, config)
    rest = {str(name): value for name, value in config.items() if name not in IN_ENV_CONFIG}
    if written.get("env_type") in OURS:
        for name in [name for name in rest if name in DISPLAY]:
            draft.leave_out(f"{key}.env_config.{name}", "an environment of ours draws itself")
            del rest[name]
    elif written.get("env_type"):
        draft.to_do(
            f"{key}: there may be no environment {written['env_type']!r} here; write yours as "
            f"file.py->Class at {target}.env_type"
        )
    if rest:
        draft.set(f"{target}.env_config", rest, f"{key}.env_config")
    known = (*SAME, *PLAIN, "env_config", "env_manager_cls", "agent_template")
    for name in [name for name in written if name not in known]:
        draft.leave_out(f"{key}.{name}", "no such setting of an environment", algorithm=True)


def _agent(draft: Draft, key: str, target: str, written: Mapping[str, Any]) -> None:
    path = written.get("env_manager_cls")
    if path is None:
        return
    name = str(path).rpartition(".")[2]
    if name in AGENTS:
        draft.set(f"{target}.env_manager_cls", AGENTS[name], f"{key}.env_manager_cls")
    else:
        reason = f"there are {', '.join(AGENTS)}; write an agent of your own, and its name here"
        draft.leave_out(f"{key}.env_manager_cls", reason, algorithm=True)


def _texts(
    draft: Draft, key: str, target: str, written: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    """What the model is told, and where its action is read."""
    template = written.get("agent_template")
    if template is not None:
        for old, new in PLACEHOLDERS.items():
            template = str(template).replace(old, new)
        draft.set(f"{target}.agent_template", template, f"{key}.agent_template")
    instruction = config.get("env_instruction")
    if instruction:
        system = written.get("agent_system_template") or ""
        told = str(instruction).replace("{", "{{").replace("}", "}}")
        text = f"{system}\n{told}".strip()
        origin = f"{key}.env_config.env_instruction"
        draft.set(f"{target}.agent_system_template", text, origin)
    pattern = config.get("action_pattern")
    if pattern is not None:
        origin = f"{key}.env_config.action_pattern"
        draft.set(f"{target}.action_pattern", one_group(str(pattern)), origin)


def one_group(pattern: str) -> str:
    """Of two groups ROLL takes the first for the thought and the second for the action."""
    try:
        groups = re.compile(pattern).groups
    except re.error:
        return pattern
    return re.sub(r"(?<!\\)\((?!\?)", "(?:", pattern, count=groups - 1) if groups > 1 else pattern


def _manager(draft: Draft, name: str, environments: Mapping[str, Any]) -> None:
    tags = draft.take(f"{name}.tags")
    parts = draft.take(f"{name}.num_groups_partition")
    groups = _groups(draft, name)
    tags = tags if isinstance(tags, list) else list(environments)
    kept = [tag for tag in tags if tag in environments]
    if kept != tags:
        gone = [tag for tag in tags if tag not in environments]
        reason = f"custom_envs has no {', '.join(map(str, gone))}"
        draft.leave_out(f"{name}.tags", reason, algorithm=name == TRAIN)
    target = f"{ENVIRONMENT}.{name}"
    if kept:
        draft.set(f"{target}.tags", kept, f"{name}.tags")
    if isinstance(parts, list) and kept:
        shares = [part for tag, part in zip(tags, parts, strict=False) if tag in environments]
        _partition(draft, name, shares, groups)
    _penalty(draft, name, [environments[tag] for tag in kept])
    if draft.number(f"{name}.max_env_num_per_worker") > 0:
        draft.copy(f"{name}.max_env_num_per_worker", f"{target}.max_env_num_per_worker")


def _groups(draft: Draft, name: str) -> int:
    """Groups of a step, or of a validation: ROLL counts its trajectories."""
    if name == TRAIN:
        return draft.result.values.get("ajet.data.train_batch_size") or 32
    keys = ("val_batch_size", f"{name}.group_size")
    rows, group = (draft.number(key) for key in keys)
    groups = draft.number(f"{name}.num_env_groups")
    if rows > 0:
        groups = rows // max(1, group)
    draft.set(f"{ENVIRONMENT}.{name}.num_env_groups", groups, *keys)
    return groups


def _partition(draft: Draft, name: str, shares: list[Any], groups: int) -> None:
    """ROLL shares out environments, we share out the groups of a step: in the same proportion."""
    key, total = f"{name}.num_groups_partition", sum(shares)
    scaled = [share * groups // total for share in shares] if total else []
    if sum(scaled) != groups or 0 in scaled:
        reason = f"{groups} groups cannot be shared out in these proportions; they are even"
        draft.leave_out(key, reason, algorithm=name == TRAIN and len(shares) > 1)
    else:
        draft.set(f"{ENVIRONMENT}.{key}", scaled, key)


def _penalty(draft: Draft, name: str, environments: list[Any]) -> None:
    """The manager's own penalty comes before those of its environments."""
    key, target = f"{name}.format_penalty", f"{ENVIRONMENT}.{name}.format_penalty"
    own = draft.number(key)
    configs = [env.get("env_config") or {} for env in environments if isinstance(env, Mapping)]
    others = {float(config.get("format_penalty") or 0) for config in configs} - {0.0}
    if own:
        draft.set(target, float(own), key)
    elif len(others) == 1:
        draft.set(target, next(iter(others)), "custom_envs")
        return
    if others - {own}:
        reason, values = f"{ONE_PENALTY} ({name})", sorted(others)
        key, why = "env_config.format_penalty", "algorithm" if name == TRAIN else "machine"
        draft.result.left_out.append(LeftOut(key, values, reason, why))
