"""Provides AgentJet's `ajet.task_rollout.dashscope_llm_bridge`: a model of DashScope for a judge.

    ask = create_external_llm_fn(alien_llm_model="qwen-max", alien_llm_response_length=512)
    text = ask([{"role": "user", "content": "Is it right?"}])["content"]

The call blocks. An `async` judge can use `await self.client.complete(messages)` instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loguru import logger

from ajet.compat.agentjet.task_rollout.dashscope_keys import (
    ATTEMPTS,
    RETRY_WAIT_S,
    keys_to_try,
    without_keys,
)
from ajet.core.errors import ChatError
from ajet.core.errors.codes import Code

__all__ = ["create_external_llm_fn"]

DASHSCOPE_URL = "https://dashscope.aliyuncs.com/compatible-mode/v1"
Message = dict[str, Any]


def create_external_llm_fn(
    alien_llm_model: str,
    alien_llm_response_length: int,
    *,
    base_url: str = DASHSCOPE_URL,
    retry_wait_s: float = RETRY_WAIT_S,
) -> Callable[..., Message]:
    """Returns a function that sends messages to the model and returns its reply as a message. It
    tries four times, with the environment's keys in turn, and then raises a `ChatError`."""

    def external_llm_chat_fn(
        messages: Sequence[Message],
        sampling_params_override: Mapping[str, Any] | None = None,
        request_id: str = "",
    ) -> Message:
        from openai import OpenAI, OpenAIError

        length = {"max_completion_tokens": alien_llm_response_length}
        sampling = {"n": 1, "temperature": 0.0, **length, **(sampling_params_override or {})}
        reason = ""
        for number, key in enumerate(keys_to_try(ATTEMPTS), 1):
            try:
                with OpenAI(api_key=key, base_url=base_url, max_retries=0) as client:
                    completion = client.chat.completions.create(
                        model=alien_llm_model,
                        messages=messages,  # pyright: ignore[reportArgumentType]
                        extra_body=sampling,
                    )
                reply = completion.choices[0].message
                return {"role": reply.role, "content": reply.content or ""}
            except OpenAIError as error:
                reason = without_keys(f"model {alien_llm_model} at {base_url}: {error}")
            if number < ATTEMPTS:
                logger.warning("{}; retrying in {:g} s", reason, retry_wait_s)
                time.sleep(retry_wait_s)
        raise ChatError(f"{reason} (tried {ATTEMPTS} times)", code=Code.CHAT_NO_ANSWER)

    return external_llm_chat_fn
