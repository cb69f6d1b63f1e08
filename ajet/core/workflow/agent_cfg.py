"""Reads the YAML of a row's `agent_cfg_path`: a graph's own settings, and limits of its episodes.

    max_total_token_length: 4096      tokens of a conversation
    max_ai_message_turn: 3            calls of the model in an episode
    anything: else                    cfg.anything

It is read with OmegaConf, as in ChatLearn: values by attribute or key, `${…}` resolved, read-only.
Not covered: a file that changes while the run goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError
from ajet.core.plain_value import plain_text

if TYPE_CHECKING:
    from omegaconf import DictConfig

MAX_PATH_SHOWN = 200
LIMITS = {"max_ai_message_turn": "max_steps", "max_total_token_length": "max_model_len"}


def read_agent_cfg(path: Any, base_dirs: Sequence[Path]) -> DictConfig:
    """Returns the config that a row names, which is read once; without a path an empty config."""
    if not path:
        return _read(None)
    try:
        candidates = [(folder / Path(str(path)).expanduser()).resolve() for folder in base_dirs]
        file = next((candidate for candidate in candidates if candidate.is_file()), None)
    except (OSError, ValueError, RuntimeError) as error:  # no file has such a name
        raise ConfigError(
            f"agent_cfg_path {plain_text(path, MAX_PATH_SHOWN)!r} of a task: no file's name",
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
            f"{path} (agent_cfg_path of a task): no valid YAML: {reason}", code=Code.TASK_SETTING
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
                f"agent_cfg_path of a task: {name} is {value!r}, no positive number",
                code=Code.TASK_SETTING,
            )
    return {LIMITS[name]: value for name, value in limits.items() if value is not None}


def base_dirs_of(config: Any) -> list[Path]:
    """Returns the folders where a run's files are looked for; without a config the current one."""
    return getattr(config, "base_dirs", None) or [Path.cwd()]
