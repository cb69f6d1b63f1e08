"""Converts ROLL's environments: `custom_envs` and the two managers.

    env_manager_cls: ….StepEnvManager       step_env_agent
    env_config.action_pattern               action_pattern, one group: what is thought has none
    env_config.format_penalty               the environment's format_penalty, before its manager's
    history_length: 5                       4: ROLL counts the step that is being taken
    a conversation                          {env_instruction} in its system message: ROLL's own
                                            managers put it before the first observation

    env_type: rg:NAME                       reasoning_gym:NAME, whose answer is in \\boxed{}
    an environment class of the user's      reads whole replies: action_pattern null; it keeps its
                                            env_config, and its own format_penalty

Not covered: whether there is an environment of a name that ajet does not have.
"""

import re
from collections.abc import Mapping
from typing import Any

from ajet.convert.draft import Draft
from ajet.core.environment.registry import arguments_of, environment_maker

ENVIRONMENT = "ajet.environment"
ROLLOUT = "ajet.rollout"
TRAIN = "train_env_manager"
AGENTS = {"TrajEnvManager": "traj_env_agent", "StepEnvManager": "step_env_agent"}
DEFAULTS: dict[str, dict[str, Any]] = {
    "frozen_lake": {"is_slippery": True},
    "sokoban": {"dim_room": [10, 10], "num_boxes": 4, "search_depth": 300},
    "webshop": {},
}
"""The environments that ajet has too, with those of ROLL's arguments whose defaults differ."""
PLACEHOLDERS = {"{current_observation}": "{observation}", "{current_step}": "{turn_idx}"}
INSTRUCTION = "{env_instruction}"
REASONING_GYM = "rg:"
BOXED = r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}"
"""The pattern by which gem's environments on reasoning-gym find the answer."""
IN_ENV_CONFIG = ("action_pattern", "max_steps", "format_penalty", "env_instruction")
DISPLAY = (
    "render_mode", "grid_lookup", "grid_vocab", "map_lookup", "action_lookup", "special_token_list"
)  # fmt: skip
TAKEN = (
    "env_type", "max_steps", "max_tokens_per_step", "env_manager_cls", "agent_system_template",
    "agent_template", "history_length", "env_config",
)  # fmt: skip
PLAIN = ("use_thread_lock", "max_env_step_concurrent", "tag", "config")


def take_environments(draft: Draft) -> None:
    """Converts the environments, then the managers that use them."""
    environments = draft.section("custom_envs")
    for tag, written in environments.items():
        if isinstance(written, Mapping):
            _environment(draft, str(tag), written)
        else:
            key = f"custom_envs.{tag}"
            draft.leave_out(key, "a section is expected for an environment", algorithm=True)
    for name in (TRAIN, "val_env_manager"):
        _manager(draft, name, environments)
    if "step_env_agent" in draft.result.values.values():
        draft.to_do(
            "an update of ROLL's StepEnvManager counts steps where ours counts episodes: see "
            "ajet.trainer_common.mini_batch_num, and loss_agg_mode where it begins with seq"
        )


def _environment(draft: Draft, tag: str, written: Mapping[str, Any]) -> None:
    key, target = f"custom_envs.{tag}", f"{ENVIRONMENT}.custom_envs.{tag}"
    config = {str(name): value for name, value in (written.get("env_config") or {}).items()}
    env_type = str(written.get("env_type"))
    if env_type != "None":
        family = env_type.removeprefix(REASONING_GYM)
        kind = f"reasoning_gym:{family}" if _is_rg(env_type) else env_type
        draft.set(f"{target}.env_type", kind, f"{key}.env_type")
    agent = _agent(draft, key, target, written)
    _limits(draft, key, target, written, config)
    _texts(draft, key, target, written, config, agent)
    if config.get("format_penalty"):
        origin, penalty = f"{key}.env_config.format_penalty", float(config["format_penalty"])
        draft.set(f"{target}.format_penalty", 0.0 if _is_users(env_type) else penalty, origin)
    _arguments(draft, key, target, env_type, config)
    unknown = [name for name in written if name not in (*TAKEN, *PLAIN)]
    for name in [name for name in unknown if written[name] is not None]:
        draft.leave_out(f"{key}.{name}", "no such setting of an environment", algorithm=True)


def _limits(
    draft: Draft, key: str, target: str, written: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    """Converts the limits of steps and tokens. Of two limits in ROLL the smaller one applies."""
    own, games = written.get("max_steps"), config.get("max_steps")
    if own is None or (written.get("env_type") == "sokoban" and games and games < own):
        own, key_of_steps = games, f"{key}.env_config.max_steps"
    else:
        key_of_steps = f"{key}.max_steps"
    if own:
        draft.set(f"{target}.max_steps", own, key_of_steps)
        calls = f"{ROLLOUT}.multi_turn.max_steps"
        if own > draft.result.values.get(calls, 30):
            draft.set(calls, own, key_of_steps)
    tokens, reply = written.get("max_tokens_per_step"), "actor_infer.generating_args.max_new_tokens"
    ceiling = draft.number(reply) or draft.number(f"{TRAIN}.generating_args.max_new_tokens")
    if tokens and ceiling and tokens > ceiling:
        draft.set(f"{target}.max_tokens_per_step", ceiling, f"{key}.max_tokens_per_step", reply)
    elif tokens:
        draft.set(f"{target}.max_tokens_per_step", tokens, f"{key}.max_tokens_per_step")


def _arguments(draft: Draft, key: str, target: str, env_type: str, config: dict[str, Any]) -> None:
    """Converts the arguments that the environment itself is made with. A class of the user's gets
    all of them."""
    rest = {name: value for name, value in config.items() if name not in IN_ENV_CONFIG}
    if env_type in DEFAULTS:
        rest = {name: value for name, value in rest.items() if value is not None}
        known = _arguments_of(env_type)
        for name in [name for name in rest if name not in known]:
            drawn = name in DISPLAY
            reason = (
                "an environment of ours draws itself"
                if drawn
                else f"{env_type} takes {', '.join(known)}"
            )
            draft.leave_out(f"{key}.env_config.{name}", reason, algorithm=not drawn)
            del rest[name]
        rest = DEFAULTS[env_type] | rest
    elif _is_rg(env_type):
        for name in [name for name in ("seed", "size") if name in rest]:
            draft.leave_out(f"{key}.env_config.{name}", "the episode's seed draws the question")
            del rest[name]
    elif _is_users(env_type):
        rest = dict(config)
        draft.to_do(
            f"{key}: there may be no environment {env_type!r} here; write yours as "
            f"file.py->Class at {target}.env_type"
        )
    if rest:
        draft.set(f"{target}.env_config", rest, f"{key}.env_config")


def _arguments_of(env_type: str) -> list[str]:
    """Returns the arguments that `env_config` may have for an environment of ajet, without the
    limit of steps, which is the agent's."""
    kind = environment_maker(env_type, {}, (), env_type).kind
    return [name for name in arguments_of(kind) or () if name != "max_steps"]


def _agent(draft: Draft, key: str, target: str, written: Mapping[str, Any]) -> str:
    """Converts the agent and returns its name. The default of both systems shows the whole
    conversation."""
    path = written.get("env_manager_cls")
    name = str(path).rpartition(".")[2]
    agent = AGENTS.get(name, "traj_env_agent")
    if name in AGENTS:
        draft.set(f"{target}.env_manager_cls", agent, f"{key}.env_manager_cls")
    elif path is not None:
        reason = f"there are {', '.join(AGENTS)}; write an agent of your own, and its name here"
        draft.leave_out(f"{key}.env_manager_cls", reason, algorithm=True)
    if agent == "step_env_agent":
        length = written.get("history_length")
        if length == 0:
            reason = "0 shows all earlier steps in ROLL: give max_steps for that"
            draft.leave_out(f"{key}.history_length", reason, algorithm=True)
        earlier = max(0, length - 1) if isinstance(length, int) else 0
        draft.set(f"{target}.history_length", earlier, f"{key}.history_length")
    elif written.get("history_length") is not None:
        draft.leave_out(f"{key}.history_length", "the agent shows the whole conversation")
    return agent


def _texts(
    draft: Draft,
    key: str,
    target: str,
    written: Mapping[str, Any],
    config: Mapping[str, Any],
    agent: str,
) -> None:
    """Converts the prompts and the pattern of an action."""
    instruction, origin = _instruction(written, config), f"{key}.env_config.env_instruction"
    template = written.get("agent_template")
    if template is not None:
        keys = [f"{key}.agent_template"] + [origin] * (INSTRUCTION in template)
        for old, new in (PLACEHOLDERS | {INSTRUCTION: instruction}).items():
            template = str(template).replace(old, new)
        draft.set(f"{target}.agent_template", template, *keys)
    system = written.get("agent_system_template") or ""
    keys = [f"{key}.agent_system_template"]
    if agent == "traj_env_agent":
        keys.append(origin)
        system = f"{system}\n{instruction}".strip()
    if system != INSTRUCTION:
        draft.set(f"{target}.agent_system_template", system, *keys)
    pattern = config.get("action_pattern")
    origin, env_type = f"{key}.env_config.action_pattern", str(written.get("env_type"))
    if _is_users(env_type):
        draft.set(f"{target}.action_pattern", None, f"{key}.env_type", origin)
    elif pattern is not None:
        draft.set(f"{target}.action_pattern", one_group(str(pattern)), origin)
    elif _is_rg(env_type):
        draft.set(f"{target}.action_pattern", BOXED, f"{key}.env_type")


def _is_rg(env_type: str) -> bool:
    return env_type.startswith(REASONING_GYM)


def _is_users(env_type: str) -> bool:
    """Returns whether an environment is a class of the user's, which ajet does not have."""
    return env_type not in (*DEFAULTS, "None") and not _is_rg(env_type)


def _instruction(written: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Returns the environment's own instruction, or the config's text. ROLL's two games append a
    description of symbols and actions to it; ajet's have that in their instruction. A class of the
    user's gets the text itself, and gem's questions have no instruction."""
    text, env_type = config.get("env_instruction"), str(written.get("env_type"))
    if _is_users(env_type):
        return INSTRUCTION
    if not text:
        return "" if _is_rg(env_type) else INSTRUCTION
    escaped_text = str(text).replace("{", "{{").replace("}", "}}")
    return (
        escaped_text
        if written.get("env_type") not in DEFAULTS
        else f"{escaped_text}\n{INSTRUCTION}"
    )


def one_group(pattern: str) -> str:
    """Returns the pattern with one group. Of two groups, ROLL takes the first for the thought and
    the second for the action."""
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
    known_tags = [tag for tag in tags if tag in environments]
    if known_tags != tags:
        unknown_tags = [tag for tag in tags if tag not in environments]
        reason = f"custom_envs has no {', '.join(map(str, unknown_tags))}"
        draft.leave_out(f"{name}.tags", reason, algorithm=name == TRAIN)
    target = f"{ENVIRONMENT}.{name}"
    if known_tags:
        draft.set(f"{target}.tags", known_tags, f"{name}.tags")
    if isinstance(parts, list) and known_tags:
        shares = [part for tag, part in zip(tags, parts, strict=False) if tag in environments]
        _partition(draft, name, shares, groups)
    if draft.number(f"{name}.format_penalty"):
        draft.copy(f"{name}.format_penalty", f"{target}.format_penalty", float)
    if draft.has_key(f"{name}.max_env_num_per_worker"):
        reason = "environments run in the run's process, unless their isolation is process"
        draft.leave_out(f"{name}.max_env_num_per_worker", reason)


def _groups(draft: Draft, name: str) -> int:
    """Returns the number of groups of a step, or of a validation; ROLL counts trajectories."""
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
    """Converts the shares of the tags, in the same proportion: ROLL divides environments among
    them, ajet the groups of a step."""
    key, total = f"{name}.num_groups_partition", sum(shares)
    scaled = [share * groups // total for share in shares] if total else []
    if sum(scaled) != groups or 0 in scaled:
        reason = f"{groups} groups cannot be shared out in these proportions; they are even"
        draft.leave_out(key, reason, algorithm=name == TRAIN and len(shares) > 1)
    else:
        draft.set(f"{ENVIRONMENT}.{key}", scaled, key)
