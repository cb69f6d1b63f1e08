"""Reads all settings of one tag's episodes from the config, once: its environment, the templates of
its prompts, and how the action is found in a reply."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from string import Formatter
from typing import Any

from ajet.core.config import AjetConfig
from ajet.core.config.environment import CustomEnv, EnvManager
from ajet.core.environment.foreign import reads_replies
from ajet.core.environment.live import LiveEnvironment, close_quietly, open_environment
from ajet.core.environment.registry import ENVIRONMENTS, EnvironmentMaker, environment_maker
from ajet.core.errors import ConfigError, KeysConflict, NoSuchEnvironment, SettingError
from ajet.core.errors.codes import Code
from ajet.core.task.environment import played_tags
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.text.error_text import one_line
from ajet.core.user_code.plugins import plugins

EPISODE_PLACEHOLDERS = (
    "env_instruction",
    "max_steps",
    "response_length",
    "max_response_length",
    "answer_form",
)
STEP_PLACEHOLDERS = (
    "observation",
    "state",
    "turn_idx",
    "step_count",
    "actions_left",
    "history",
    "history_length",
    *EPISODE_PLACEHOLDERS,
)
"""`state` means the same as `observation`, and `response_length` the same as `max_response_length`.
`history_length` is the number of steps in the history so far, at most the configured window."""
TEXT_PLACEHOLDERS = ("env_instruction", "answer_form", "observation", "state", "history")
BRACE_HINT = "write a literal brace twice"
MISSING_ACTION_TEXT = "Your reply names no action: write it as {answer_form}."
SECTION = "ajet.environment"


def _text_error(problem: str) -> ConfigError:
    return ConfigError(problem, code=Code.ENVIRONMENT_TEXT)


def checked_template(template: str, placeholders: Collection[str], key: str) -> str:
    """Returns the template; raises `ConfigError` for a placeholder that nothing fills, or whose
    format does not suit its value, such as ``{observation:d}``."""
    try:
        fields = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise _text_error(f"{key}: {error}; {BRACE_HINT}") from None
    unknown = next((name for name in fields if name not in placeholders), None)
    if unknown is not None:
        raise _text_error(
            f"{key}: no placeholder {{{unknown}}}; there are "
            f"{', '.join(f'{{{name}}}' for name in placeholders)} ({BRACE_HINT})"
        )
    values = {name: "text" if name in TEXT_PLACEHOLDERS else 1 for name in placeholders}
    try:
        template.format(**values)
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise _text_error(
            f"{key}: a placeholder's form is wrong: {type(error).__name__}: {error}"
        ) from None
    return template


class ActionReader:
    """Finds the action in a reply: the first group of the pattern's last match, or the whole reply
    without a pattern. "<answer>Up</answer> no, <answer>Left</answer>" names Left."""

    def __init__(self, pattern: str | None, key: str) -> None:
        try:
            self._pattern = None if pattern is None else re.compile(pattern, re.DOTALL)
        except (re.error, OverflowError, RecursionError) as error:
            raise _text_error(f"{key}: {pattern!r} is not a regular expression: {error}") from None
        if self._pattern is not None and self._pattern.groups != 1:
            raise _text_error(
                f"{key}: {pattern!r} has {self._pattern.groups} groups: put the action, and "
                "nothing else, in parentheses; write any other group as (?:…)"
            )
        self.answer_form = "the action alone" if pattern is None else _readable_form(pattern)
        self.missing_action_text = MISSING_ACTION_TEXT.format(answer_form=self.answer_form)

    def find_action(self, reply: str) -> str | None:
        if self._pattern is None:
            return reply.strip() or None
        # Empty matches do not count: ``(.*)`` has one at the end of every text.
        matches = [match for match in self._pattern.finditer(reply) if match.group()]
        action = matches[-1].group(1) if matches else None
        return (action or "").strip() or None


def _readable_form(pattern: str) -> str:
    """Returns the pattern as a person would write it: ``<answer>(.*?)</answer>`` becomes
    <answer>…</answer>. The text is part of prompts."""
    written = re.sub(r"^(?:\(\?[a-zA-Z]+\))?\^?|(?<!\\)\$$", "", pattern)  # flags and anchors
    written = re.sub(r"\((?:\?P<\w+>|(?!\?))[^()]*\)", "…", written)
    written = re.sub(r"\\s[*+?]*", " ", written)
    return re.sub(r"\\(.)", r"\1", written).strip()


@dataclass(frozen=True, slots=True)
class EnvironmentSettings:
    tag: str
    custom: CustomEnv
    manager: EnvManager
    maker: EnvironmentMaker
    reader: ActionReader
    system_template: str
    template: str

    def open(self) -> AbstractAsyncContextManager[LiveEnvironment]:
        custom, limit = self.custom, self.manager.max_env_num_per_worker
        return open_environment(self.maker, custom.isolation, custom.step_timeout_s, limit)

    @property
    def format_penalty(self) -> float:
        """The environment's penalty, or its manager's if the environment has none."""
        penalty = self.custom.format_penalty
        return self.manager.format_penalty if penalty is None else penalty

    def placeholders(self, instruction: str) -> dict[str, Any]:
        """Returns the values of the placeholders that are the same at each step."""
        custom = self.custom
        return {
            "env_instruction": instruction,
            "max_steps": custom.max_steps,
            "response_length": custom.max_tokens_per_step,
            "max_response_length": custom.max_tokens_per_step,
            "answer_form": self.reader.answer_form,
        }


def settings_for(
    config: AjetConfig, workflow_task: WorkflowTask, template: str
) -> EnvironmentSettings:
    """Returns the settings of an episode. `template` is the agent's; it is used if the config has
    none."""
    tag = str(workflow_task.task.metadata.get("tag", ""))
    return _cached_settings(_ConfigIdentity(config), tag, split_of(workflow_task), template)


def split_of(workflow_task: WorkflowTask) -> str:
    """Returns the split whose instances an episode plays. It is the task's split even in
    validation: a baseline and `ajet eval --split training` play instances of training."""
    split = workflow_task.task.metadata.get("split")
    return str(split or ("validation" if workflow_task.mode == "eval" else "train"))


def check_settings(config: AjetConfig, template: str) -> None:
    """Raises `ConfigError` for what would fail in every episode. It makes each environment; those
    that come with ajet are also reset once, because there may be no instance with these
    settings."""
    section = config.ajet.environment
    played = [(tag, "train") for tag in played_tags(section, section.train_env_manager)]
    if section.val_env_manager.num_env_groups:
        played += [(tag, "validation") for tag in played_tags(section, section.val_env_manager)]
    for tag, split in played:
        settings = _build_settings(config, tag, split, template)
        _check_limits(config, settings)
        with _config_errors(f"{SECTION}.custom_envs.{tag}", settings.custom.env_type):
            environment = settings.maker()
            try:
                # A service is asked for an instance only when an episode begins.
                if settings.custom.env_type in {*plugins(ENVIRONMENTS)} - {"env_service"}:
                    environment.reset(0, {"split": split})
            finally:
                close_quietly(environment)


@contextmanager
def _config_errors(key: str, env_type: str) -> Iterator[None]:
    """Turns errors of an environment into a `ConfigError` that names the config key."""
    try:
        yield
    except ConfigError as error:
        raise SettingError(f"{key}: {error}") from error
    except (Exception, SystemExit) as error:  # the environment may raise anything
        raise ConfigError(
            f"{key}: {env_type}: {one_line(error)}", code=Code.ENVIRONMENT_FAILS
        ) from error


class _ConfigIdentity:
    """A config as a cache key, compared by identity: a config holds dicts and cannot be hashed."""

    def __init__(self, config: AjetConfig) -> None:
        self.config = config

    def __hash__(self) -> int:
        return id(self.config)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ConfigIdentity) and other.config is self.config


@lru_cache(maxsize=64)
def _cached_settings(
    config: _ConfigIdentity, tag: str, split: str, template: str
) -> EnvironmentSettings:
    return _build_settings(config.config, tag, split, template)


def _build_settings(config: AjetConfig, tag: str, split: str, template: str) -> EnvironmentSettings:
    section = config.ajet.environment
    if tag not in section.custom_envs:
        names = ", ".join(section.custom_envs) or "none"
        raise NoSuchEnvironment(
            f"{SECTION}.custom_envs has no {tag!r} ({names}): the agents of environments play "
            "tasks of task_reader.type: environment"
        )
    custom, key = section.custom_envs[tag], f"{SECTION}.custom_envs.{tag}"
    maker = environment_maker(
        custom.env_type, custom.env_config, config.base_dirs, f"{key}.env_type"
    )
    if custom.action_pattern is not None and reads_replies(maker.environment_class):
        raise ConfigError(
            f"{key}.action_pattern: {maker.environment_class.__name__} finds the action in a "
            "reply itself, by its env_config's action_pattern: write action_pattern: null here",
            code=Code.ENVIRONMENT_TEXT,
        )
    if custom.agent_template is not None:
        template = custom.agent_template
    return EnvironmentSettings(
        tag=tag,
        custom=custom,
        manager=section.train_env_manager if split == "train" else section.val_env_manager,
        maker=maker,
        reader=ActionReader(custom.action_pattern, f"{key}.action_pattern"),
        system_template=checked_template(
            custom.agent_system_template, EPISODE_PLACEHOLDERS, f"{key}.agent_system_template"
        ),
        template=checked_template(template, STEP_PLACEHOLDERS, f"{key}.agent_template"),
    )


def _check_limits(config: AjetConfig, settings: EnvironmentSettings) -> None:
    """Raises `ConfigError` if an environment is configured with more than an episode may use."""
    rollout, custom = config.ajet.rollout, settings.custom
    key = f"{SECTION}.custom_envs.{settings.tag}"
    if custom.isolation == "inline" and custom.env_type == "env_service":
        raise SettingError(
            f"{key}.isolation is inline, but calls of a service block: write auto, thread or "
            "process"
        )
    if custom.max_steps > rollout.multi_turn.max_steps:
        raise KeysConflict(
            f"{key}.max_steps is {custom.max_steps}, more than the model calls of an episode: "
            f"raise ajet.rollout.multi_turn.max_steps ({rollout.multi_turn.max_steps})"
        )
    if custom.max_tokens_per_step > rollout.max_response_length_in_one_turn:
        raise KeysConflict(
            f"{key}.max_tokens_per_step is {custom.max_tokens_per_step}, more than "
            "ajet.rollout.max_response_length_in_one_turn "
            f"({rollout.max_response_length_in_one_turn}): raise that, or lower this"
        )
