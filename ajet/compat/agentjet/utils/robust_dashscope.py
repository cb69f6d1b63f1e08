"""Provides AgentJet's `ajet.utils.robust_dashscope`: DashScope's model with several keys."""

from __future__ import annotations

import asyncio
from typing import Any

from agentscope.model import ChatResponse, DashScopeChatModel
from aiohttp import ClientError
from loguru import logger

from ajet.compat.agentjet.task_rollout.dashscope_llm_bridge import (
    ATTEMPTS,
    RETRY_WAIT_S,
    keys_to_try,
    without_keys,
)
from ajet.core.errors import ChatError
from ajet.core.errors.codes import Code

__all__ = ["RobustDashScopeChatModel"]

FAILURES = (RuntimeError, OSError, ClientError)
"""The errors of a call that DashScope refuses (RuntimeError) or that does not reach it."""


class RobustDashScopeChatModel(DashScopeChatModel):
    """Tries each call `max_try` times, with the environment's keys in turn. The replies are never
    trained. A stream that breaks off is not restarted."""

    def __init__(
        self,
        model_name: str = "qwen3-max",
        stream: bool = False,
        max_try: int = ATTEMPTS,
        *,
        retry_wait_s: float = RETRY_WAIT_S,
        **settings: Any,
    ) -> None:
        self.max_try = max_try
        self.retry_wait_s = retry_wait_s
        key = keys_to_try(1)[0]
        super().__init__(model_name=model_name, api_key=key, stream=stream, **settings)

    async def __call__(self, *arguments: Any, **options: Any) -> ChatResponse | Any:
        reason = ""
        for number, key in enumerate(keys_to_try(self.max_try), 1):
            self.api_key = key
            try:
                return await super().__call__(*arguments, **options)
            except FAILURES as error:
                reason = without_keys(f"model {self.model_name} of DashScope: {error}")
            if number < self.max_try:
                logger.warning("{}; retrying in {:g} s", reason, self.retry_wait_s)
                await asyncio.sleep(self.retry_wait_s)
        raise ChatError(f"{reason} (tried {self.max_try} times)", code=Code.CHAT_NO_ANSWER)
