"""Reads the YAML of a row's `agent_cfg_path`: settings of a graph, and limits of its episodes.

    max_total_token_length: 4096      tokens of a conversation
    max_ai_message_turn: 3            calls of the model in an episode
    anything: else                    cfg.anything

As in ChatLearn it is read with OmegaConf: values by attribute or key, `${…}` resolved. It is
read-only, and a process reads the file once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.text.plain_value import plain_text

if TYPE_CHECKING:
    from omegaconf import DictConfig

MAX_PATH_SHOWN = 200
LIMITS = {"max_ai_message_turn": "max_steps", "max_total_token_length": "max_model_len"}


def read_agent_cfg(path: Any, base_dirs: Sequence[Path]) -> DictConfig:
    """Returns the config that a row names, or an empty one without a path."""
    if not path:
        return _read(None)
    try:
        candidates = [(folder / Path(str(path)).expanduser()).resolve() for folder in base_dirs]
        file = next((candidate for candidate in candidates if candidate.is_file()), None)
    except (OSError, ValueError, RuntimeError) as error:  # a NUL, too long, ~ of an unknown user
        raise ConfigError(
            f"agent_cfg_path {plain_text(path, MAX_PATH_SHOWN)!r} of a task: not a file name",
            code=Code.TASK_SETTING,
        ) from error
    if file is None:
        tried = ", ".join(map(str, dict.fromkeys(candidates)))
        raise ConfigError(
            f"agent_cfg_path {str(path)!r} of a task: no such file; looked for {tried}",
            code=Code.TASK_SETTING,
        )
    return _read(file)


@lru_cache(maxsize=64)
def _read(path: Path | None) -> DictConfig:
    from omegaconf import DictConfig, OmegaConf
    from yaml import YAMLError

    try:
        cfg = OmegaConf.create() if path is None else OmegaConf.load(path)
    except YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{path} (agent_cfg_path of a task): not valid YAML: {reason}", code=Code.TASK_SETTING
        ) from error
    if not isinstance(cfg, DictConfig):
        raise ConfigError(
            f"{path} (agent_cfg_path of a task): holds no keys with values", code=Code.TASK_SETTING
        )
    OmegaConf.set_readonly(cfg, True)  # the episodes share it
    limits_of(cfg)
    return cfg


def limits_of(cfg: DictConfig) -> dict[str, int]:
    """Returns ChatLearn's limits under ajet's names."""
    limits = {name: cfg.get(name) for name in LIMITS}
    for name, value in limits.items():
        if value is not None and (type(value) is not int or value < 1):
            raise ConfigError(
                f"agent_cfg_path of a task: {name} is {value!r}, not a positive number",
                code=Code.TASK_SETTING,
            )
    return {LIMITS[name]: value for name, value in limits.items() if value is not None}


def base_dirs_of(config: Any) -> list[Path]:
    """Returns the folders to look for a run's files in; without a config the current one."""
    return getattr(config, "base_dirs", None) or [Path.cwd()]
