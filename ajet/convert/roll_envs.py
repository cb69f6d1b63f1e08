"""Converts ROLL's environments: `custom_envs` and the two managers."""

import re
from collections.abc import Mapping
from typing import Any

from ajet.convert.draft import Draft
from ajet.core.environment.registry import arguments_of, environment_maker

ENVIRONMENT = "ajet.environment"
ROLLOUT = "ajet.rollout"
TRAIN = "train_env_manager"
VISION_MANAGER = "VLTrajEnvManager"
AGENTS = {
    "TrajEnvManager": "traj_env_agent",
    "StepEnvManager": "step_env_agent",
    VISION_MANAGER: "traj_env_agent",
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "frozen_lake": {"is_slippery": True},
    "sokoban": {"dim_room": [10, 10], "num_boxes": 4, "search_depth": 300},
    "webshop": {},
}
"""The environments that ajet has too, with those of ROLL's arguments whose defaults differ."""
IMAGES: dict[str, dict[str, Any]] = {
    "frozen_lake": {"view": "image", "show_neighbours": False},
    "sokoban": {"view": "image"},
}
"""The arguments of ours that show a picture and nothing else, as `render_mode: rgb_array` does."""
AROUND = ("pre_step_template", "next_step_template")
"""The texts before and after the observation, which VLTrajEnvManager reads."""
UNREAD = ("reward_template", "user_prompt_format")
PLACEHOLDERS = {"{current_observation}": "{observation}", "{current_step}": "{turn_idx}"}
INSTRUCTION = "{env_instruction}"
REASONING_GYM = "rg:"
BOXED = r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}"
"""The pattern with which gem's environments on reasoning-gym find the answer."""
IN_ENV_CONFIG = ("action_pattern", "max_steps", "format_penalty", "env_instruction")
DISPLAY = ("render_mode", "map_lookup", "special_token_list")
"""Arguments that change no prompt."""
TAKEN = (
    "env_type", "max_steps", "max_tokens_per_step", "env_manager_cls", "agent_system_template",
    "agent_template", "history_length", "env_config",
)  # fmt: skip
PLAIN = ("use_thread_lock", "max_env_step_concurrent", "tag", "config")


def take_environments(draft: Draft) -> None:
    environments = draft.section("custom_envs")
    for tag, written in environments.items():
        if isinstance(written, Mapping):
            _Environment(draft, str(tag), written).take()
        else:
            key = f"custom_envs.{tag}"
            draft.refuse(key, "a section is expected for an environment")
    for name in (TRAIN, "val_env_manager"):
        _manager(draft, name, environments)
    result = draft.result.values
    for tag in environments:
        target = f"{ENVIRONMENT}.custom_envs.{tag}"
        is_conversation = result.get(f"{target}.env_manager_cls") != "step_env_agent"
        system = result.get(f"{target}.agent_system_template", INSTRUCTION)
        if is_conversation and INSTRUCTION in system:
            draft.to_do(
                "ROLL puts env_instruction before the first observation; here it is in the system "
                "message (agent_system_template)"
            )
            break
    if "step_env_agent" in draft.result.values.values():
        draft.to_do(
            "an update of ROLL's StepEnvManager counts steps where ours counts episodes: see "
            "ajet.trainer_common.mini_batch_num, and loss_agg_mode where it begins with seq"
        )


def show_images(draft: Draft) -> bool:
    """Returns whether an environment of the source shows images."""
    environments = [each for each in draft.section("custom_envs").values() if each]
    return any(
        isinstance(each, Mapping)
        and (
            manager_of(each) == VISION_MANAGER
            or (each.get("env_config") or {}).get("render_mode") == "rgb_array"
        )
        for each in environments
    )


def manager_of(environment: Mapping[str, Any]) -> str:
    """Returns the name of the environment's manager, without its module."""
    return str(environment.get("env_manager_cls")).rpartition(".")[2]


class _Environment:
    """One of ROLL's environments: `written` is its section, `config` its `env_config`; `key` is
    ROLL's key of the section, and `target` ours.

    env_config.action_pattern               action_pattern, one group: the thought has none
    env_config.format_penalty               the environment's format_penalty; ROLL reads no other
    history_length: 5                       4: ROLL counts the current step
    pre_step_template, next_step_template   agent_template, with {observation} between them
    env_type: rg:NAME                       reasoning_gym:NAME, whose answer is in \\boxed{}
    a class of the user                     reads whole replies: action_pattern null
    """

    def __init__(self, draft: Draft, tag: str, written: Mapping[str, Any]) -> None:
        self.draft, self.written = draft, written
        self.key, self.target = f"custom_envs.{tag}", f"{ENVIRONMENT}.custom_envs.{tag}"
        config = written.get("env_config") or {}
        self.config = {str(name): value for name, value in config.items()}
        self.env_type = str(written.get("env_type"))
        self.is_rg = self.env_type.startswith(REASONING_GYM)
        self.has_vision_manager = manager_of(written) == VISION_MANAGER

    @property
    def is_users(self) -> bool:
        """Tells whether this is a class of the user's, which ajet does not have."""
        return self.env_type not in (*DEFAULTS, "None") and not self.is_rg

    def set(self, name: str, value: Any, *keys: str) -> None:
        """Sets a key of our section. `keys` are those of ROLL's section behind the value."""
        self.draft.set(f"{self.target}.{name}", value, *(f"{self.key}.{key}" for key in keys))

    def leave_out(self, name: str, reason: str) -> None:
        self.draft.leave_out(f"{self.key}.{name}", reason)

    def refuse(self, name: str, reason: str) -> None:
        self.draft.refuse(f"{self.key}.{name}", reason)

    def take(self) -> None:
        if self.env_type != "None":
            family = self.env_type.removeprefix(REASONING_GYM)
            self.set("env_type", f"reasoning_gym:{family}" if self.is_rg else family, "env_type")
        agent = self._agent()
        self._limits()
        self._texts(agent)
        if self.config.get("format_penalty"):
            penalty = 0.0 if self.is_users else float(self.config["format_penalty"])
            self.set("format_penalty", penalty, "env_config.format_penalty")
        self._arguments()
        taken = (*TAKEN, *PLAIN, *(AROUND if self.has_vision_manager else ()))
        for name, value in self.written.items():
            if name in UNREAD:
                self.leave_out(name, "ROLL's managers do not read it")
            elif value is not None and name not in taken:
                self.refuse(name, "no such setting of an environment")

    def _limits(self) -> None:
        """Converts the limits of steps and tokens. Of two limits the smaller one applies."""
        draft, steps, origin = self.draft, self.written.get("max_steps"), "max_steps"
        # Sokoban's environment stops at its own limit, whatever the manager's is.
        games = self.config.get("max_steps")
        if steps is None or (self.env_type == "sokoban" and games and games < steps):
            steps, origin = games, "env_config.max_steps"
        if steps:
            self.set("max_steps", steps, origin)
            calls = f"{ROLLOUT}.multi_turn.max_steps"
            if steps > draft.result.values.get(calls, 30):
                draft.set(calls, steps, f"{self.key}.{origin}")
        tokens = self.written.get("max_tokens_per_step")
        reply = "actor_infer.generating_args.max_new_tokens"
        most = draft.number(reply) or draft.number(f"{TRAIN}.generating_args.max_new_tokens")
        if tokens and most and tokens > most:
            keys = (f"{self.key}.max_tokens_per_step", reply)
            draft.set(f"{self.target}.max_tokens_per_step", most, *keys)
        elif tokens:
            self.set("max_tokens_per_step", tokens, "max_tokens_per_step")

    def _arguments(self) -> None:
        """Converts the arguments of the environment. A class of the user's gets all of them."""
        rest = {name: value for name, value in self.config.items() if name not in IN_ENV_CONFIG}
        if self.env_type in DEFAULTS:
            rest = {name: value for name, value in rest.items() if value is not None}
            maker = environment_maker(self.env_type, {}, (), self.env_type).environment_class
            if self.env_type in IMAGES and rest.get("render_mode") == "rgb_array":
                del rest["render_mode"]
                rest |= IMAGES[self.env_type]
            # The agent counts steps, not the environment.
            accepted = [name for name in arguments_of(maker) or () if name != "max_steps"]
            for name in [name for name in rest if name not in accepted]:
                if name in DISPLAY:
                    self.leave_out(f"env_config.{name}", "ajet's environments draw themselves")
                else:
                    reason = f"{self.env_type} takes {', '.join(accepted)}"
                    self.refuse(f"env_config.{name}", reason)
                del rest[name]
            rest = DEFAULTS[self.env_type] | rest
        elif self.is_rg:
            for name in [name for name in ("seed", "size") if name in rest]:
                self.leave_out(f"env_config.{name}", "the episode's seed draws the question")
                del rest[name]
        elif self.is_users:
            rest = self.config
            self.draft.to_do(
                f"{self.key}: there may be no environment {self.env_type!r} here; write yours as "
                f"file.py->Class at {self.target}.env_type"
            )
        if rest:
            self.set("env_config", rest, "env_config")

    def _agent(self) -> str:
        """Converts the agent and returns its name; by default it shows the whole conversation."""
        path, length = self.written.get("env_manager_cls"), self.written.get("history_length")
        name = manager_of(self.written)
        agent = AGENTS.get(name, "traj_env_agent")
        if name in AGENTS:
            self.set("env_manager_cls", agent, "env_manager_cls")
        elif path is not None:
            reason = f"there are {', '.join(AGENTS)}; write an agent of your own, and its name here"
            self.refuse("env_manager_cls", reason)
        if agent == "step_env_agent":
            if length == 0:
                reason = "0 shows all earlier steps in ROLL: give max_steps for that"
                self.refuse("history_length", reason)
            # ROLL counts the current step too.
            earlier = max(0, length - 1) if isinstance(length, int) else 0
            self.set("history_length", earlier, "history_length")
        elif length is not None:
            self.leave_out("history_length", "the agent shows the whole conversation")
        return agent

    def _texts(self, agent: str) -> None:
        instruction, origin = self._instruction(), "env_config.env_instruction"
        template, keys = self.written.get("agent_template"), ["agent_template"]
        if self.has_vision_manager:
            if template is not None:
                self.leave_out("agent_template", f"{VISION_MANAGER} reads {' and '.join(AROUND)}")
            before, after = (self.written.get(name) or "" for name in AROUND)
            template, keys = f"{before}{{observation}}{after}", list(AROUND)
        if template is not None:
            keys += [origin] * (INSTRUCTION in template)
            for old, new in (PLACEHOLDERS | {INSTRUCTION: instruction}).items():
                template = str(template).replace(old, new)
            self.set("agent_template", template, *keys)
        system, keys = self.written.get("agent_system_template") or "", ["agent_system_template"]
        if agent == "traj_env_agent":
            keys.append(origin)
            system = f"{system}\n{instruction}".strip()
        if system != INSTRUCTION:
            self.set("agent_system_template", system, *keys)
        pattern, origin = self.config.get("action_pattern"), "env_config.action_pattern"
        if self.is_users:
            self.set("action_pattern", None, "env_type", origin)
        elif pattern is not None:
            self.set("action_pattern", one_group(str(pattern)), origin)
        elif self.is_rg:
            self.set("action_pattern", BOXED, "env_type")

    def _instruction(self) -> str:
        """Returns the environment's own instruction, or the config's text. ROLL's two games append
        a description of symbols and actions to it, which is part of ajet's instruction. A class of
        the user's gets the text itself, and gem's questions have no instruction."""
        text = self.config.get("env_instruction")
        if self.is_users:
            return INSTRUCTION
        if not text:
            return "" if self.is_rg else INSTRUCTION
        escaped = str(text).replace("{", "{{").replace("}", "}}")
        return f"{escaped}\n{INSTRUCTION}" if self.env_type in DEFAULTS else escaped


def one_group(pattern: str) -> str:
    """Returns the pattern with one group. If there are two, ROLL takes the first for the thought
    and the second for the action."""
    try:
        groups = re.compile(pattern).groups
    except re.error:
        return pattern
    return re.sub(r"(?<!\\)\((?!\?)", "(?:", pattern, count=groups - 1) if groups > 1 else pattern


def _manager(draft: Draft, name: str, environments: Mapping[str, Any]) -> None:
    tags = draft.take(f"{name}.tags")
    partition = draft.take(f"{name}.num_groups_partition")
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
    if isinstance(partition, list) and known_tags:
        # The partition lists a share for every tag, those without an environment included.
        shares = [part for tag, part in zip(tags, partition, strict=False) if tag in environments]
        _partition(draft, name, shares, groups)
    if draft.number(f"{name}.format_penalty"):
        reason = "ROLL never reads it: an environment's is in its env_config"
        draft.leave_out(f"{name}.format_penalty", reason)
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
    """Converts the shares of the tags, in the same proportions: ROLL divides environments among
    them, ajet the groups of a step."""
    key, total = f"{name}.num_groups_partition", sum(shares)
    scaled = [share * groups // total for share in shares] if total else []
    if sum(scaled) != groups or 0 in scaled:
        reason = f"{groups} groups cannot be divided in these proportions; all tags get as many"
        draft.leave_out(key, reason, algorithm=name == TRAIN and len(shares) > 1)
    else:
        draft.set(f"{ENVIRONMENT}.{key}", scaled, key)
