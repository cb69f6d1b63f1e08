"""Makes a judge's `ChatClient` from `ajet.task_judge.client` and a model's name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.inference.chat_client import ChatClient

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig

REPLIES = "judge_replies.sqlite"


def judge_client(config: AjetConfig, model: str) -> ChatClient:
    """Returns a client that calls `model` with the settings of `ajet.task_judge.client`."""
    section = config.ajet.task_judge.client
    cache_path = None if section.cache_path is None else Path(section.cache_path).expanduser()
    if section.cache_path == "auto":
        # `ajet debug` has no run folder, and must not make one.
        cache_path = config.run_folder / REPLIES if config.run_folder.is_dir() else None
    return ChatClient(
        model,
        section.base_url,
        cache_path=cache_path,
        max_parallel=section.max_parallel,
        requests_per_minute=section.requests_per_minute,
        timeout_s=section.timeout_s,
        max_retries=section.max_retries,
    )


def user_judge_client(config: AjetConfig | None) -> ChatClient:
    """Returns the client for the user's own judge."""
    model = config and config.ajet.task_judge.model_name
    if config is None or model is None:
        raise ConfigError(
            "this judge asks a model: set ajet.task_judge.model_name, "
            "and call super().__init__(config) in the judge's __init__",
            code=Code.JUDGE_SETTING,
        )
    return judge_client(config, model)
