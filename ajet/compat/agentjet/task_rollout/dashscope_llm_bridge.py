"""Provides AgentJet's `ajet.task_rollout.dashscope_llm_bridge`: a model of DashScope for a judge.
The call blocks. An `async` judge can use `await self.client.complete(messages)` instead.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loguru import logger

from ajet.core.errors import ChatError, ConfigError
from ajet.core.errors.codes import Code

__all__ = ["create_external_llm_fn"]

DASHSCOPE_URL = "https://dashscope.aliyuncs.com/compatible-mode/v1"
KEYS, BACKUP_KEYS = "DASHSCOPE_API_KEY", "DASHSCOPE_API_KEY_BACKUP"
ATTEMPTS = 4
RETRY_WAIT_S = 5.0
_calls = itertools.count()
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


def keys_to_try(num_attempts: int) -> list[str]:
    """Returns each attempt's key: regular ones in the first half, beginning with another one at
    each call, then backup ones first."""
    regular, backup = _keys(KEYS), _keys(BACKUP_KEYS)
    if not regular:
        raise ConfigError(
            f"DashScope has no key: set {KEYS} (several as A|B, further ones in {BACKUP_KEYS})",
            code=Code.CHAT_ADDRESS,
        )
    shift = next(_calls) % len(regular)
    regular = regular[shift:] + regular[:shift]
    num_first = (num_attempts + 1) // 2
    first = itertools.islice(itertools.cycle(regular), num_first)
    second = itertools.islice(itertools.cycle([*backup, *regular]), num_attempts - num_first)
    return [*first, *second]


def without_keys(text: str) -> str:
    """Returns the text in one line, with stars instead of keys."""
    for key in _keys(KEYS) + _keys(BACKUP_KEYS):
        text = text.replace(key, "***")
    return " ".join(text.split())


def _keys(variable: str) -> list[str]:
    return [key.strip() for key in os.environ.get(variable, "").split("|") if key.strip()]
