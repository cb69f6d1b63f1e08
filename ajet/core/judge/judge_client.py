"""Makes a judge's `ChatClient` from the config.

    ajet.task_judge.client       address, limits, cache        + a model's name  ->  ChatClient

Not covered: the key, which comes from the environment (core/inference/chat_client.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError
from ajet.core.inference.chat_client import ChatClient

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig

REPLIES = "judge_replies.sqlite"


def judge_client(config: AjetConfig, model: str) -> ChatClient:
    """Returns a client that calls `model` with the settings of `ajet.task_judge.client`."""
    section = config.ajet.task_judge.client
    return ChatClient(
        model,
        section.base_url,
        cache_path=_cache_path(config),
        max_parallel=section.max_parallel,
        requests_per_minute=section.requests_per_minute,
        timeout_s=section.timeout_s,
        max_retries=section.max_retries,
    )


def user_judge_client(config: AjetConfig | None) -> ChatClient:
    """Returns the client of the model that the user's own judge calls."""
    model = config and config.ajet.task_judge.alien_llm_model
    if config is None or model is None:
        raise ConfigError(
            "this judge asks a model: set ajet.task_judge.alien_llm_model, "
            "and call super().__init__(config) in the judge's __init__",
            code=Code.JUDGE_SETTING,
        )
    return judge_client(config, model)


def _cache_path(config: AjetConfig) -> Path | None:
    """Returns the file that caches replies. It is in the run folder once there is one: `ajet debug`
    makes none."""
    configured = config.ajet.task_judge.client.cache_path
    if configured != "auto":
        return None if configured is None else Path(configured).expanduser()
    return config.run_folder / REPLIES if config.run_folder.is_dir() else None
