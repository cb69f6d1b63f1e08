"""A client for models behind an OpenAI-compatible API: for judges and data, never for training.

    client = ChatClient("qwen-max", "http://127.0.0.1:8000/v1", cache_path=Path("replies.sqlite"))
    text = await client.complete([{"role": "user", "content": "Is it right?"}], temperature=0)

    request --> cache --> the same one in flight? --> slot --> rate limit --> server
                  ^                                               ^  |
                  └────────── reply ──────────────────────────────┴──┘ 429, 5xx, no connection:
                                                                       again, with back-off

Equal requests (model, address, messages, sampling) get the same answer: calls that run at the same
time share one request, and with a cache it is never sent again. Another `seed=` makes it another
request. A client serves one event loop at a time; on a new loop it opens new connections.

`timeout_s` bounds each attempt with its whole answer. Not covered: streaming, tools, replies
without text.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.core.address import checked_address
from ajet.core.error_codes import Code
from ajet.core.errors import ChatError, ConfigError
from ajet.core.inference.engines.openai import KEY_VARIABLES, MAX_RETRIES, NO_KEY, api_key
from ajet.core.inference.rate_limit import RateLimit
from ajet.core.inference.reply_cache import ReplyCache
from ajet.core.shared_call import SharedCalls

if TYPE_CHECKING:
    from openai import AsyncOpenAI

CHAT_KEY_VARIABLES = ("AJET_JUDGE_API_KEY", *KEY_VARIABLES)
OPENAI_URL = "https://api.openai.com/v1"
MAX_ERROR_CHARACTERS = 300

Message = Mapping[str, Any]


class ChatClient:
    """Sends chat requests to `model` at `base_url` (default: OPENAI_BASE_URL, then OpenAI's).

    `api_key` comes from the environment if it is not given: AJET_JUDGE_API_KEY,
    AJET_ENDPOINT_API_KEY or OPENAI_API_KEY."""

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        cache_path: Path | str | None = None,
        max_parallel: int = 8,
        requests_per_minute: int | None = None,
        timeout_s: float = 60.0,
        max_retries: int = MAX_RETRIES,
    ) -> None:
        self.model = model
        self.base_url = checked_url(base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL)
        self._api_key = api_key or _key_from_environment()
        if self.base_url == OPENAI_URL and self._api_key == NO_KEY:
            raise ConfigError(
                f"model {model}: no address and no key for OpenAI's: give base_url (or set "
                f"OPENAI_BASE_URL), or set {CHAT_KEY_VARIABLES[0]}",
                code=Code.CHAT_ADDRESS,
            )
        self._cache = ReplyCache(Path(cache_path)) if cache_path else None
        self._max_parallel = max_parallel
        self._rate = RateLimit(requests_per_minute) if requests_per_minute else None
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._loop_state: _LoopState | None = None

    async def complete(self, messages: Sequence[Message], **sampling: Any) -> str:
        """Returns the reply's text, or raises a `ChatError` of one line. `sampling` holds further
        fields of the request: temperature, max_tokens, seed, …, also those of some servers only."""
        request = {"model": self.model, "messages": list(messages), **sampling}
        key = _hash({"base_url": self.base_url, **request})
        cached = self._cache.get(key) if self._cache else None
        if cached is not None:
            return cached
        state = self._state_of_loop()
        return await state.calls.join(
            key, lambda: self._send(state, key, request["messages"], sampling)
        )

    async def close(self) -> None:
        """Closes the connections and the cache; a later request opens them again."""
        state, self._loop_state = self._loop_state, None
        if state is not None and state.loop is asyncio.get_running_loop():
            await state.client.close()
        if self._cache is not None:
            self._cache.close()

    def _state_of_loop(self) -> _LoopState:
        """Returns the state of the running event loop; that of an earlier loop is dropped."""
        loop = asyncio.get_running_loop()
        if self._loop_state is None or self._loop_state.loop is not loop:
            self._loop_state = _LoopState(self._max_parallel, self._connect())
        return self._loop_state

    def _connect(self) -> AsyncOpenAI:
        from openai import AsyncOpenAI

        from ajet.core.http_client import openai_http_client

        # The hook runs before every attempt, so that retries count in the rate limit too.
        hooks = {"request": [self._before_request]} if self._rate else {}
        return AsyncOpenAI(
            base_url=self.base_url,
            api_key=self._api_key,
            timeout=self._timeout_s,
            max_retries=self._max_retries,
            http_client=openai_http_client(event_hooks=hooks),
        )

    async def _before_request(self, _request: object) -> None:
        assert self._rate is not None
        await self._rate.wait()

    async def _send(
        self, state: _LoopState, key: str, messages: list[Any], sampling: dict[str, Any]
    ) -> str:
        from openai import OpenAIError

        try:
            async with state.slots:
                completion = await state.client.chat.completions.create(
                    model=self.model, messages=messages, extra_body=sampling
                )
        except (OpenAIError, ValueError) as error:  # ValueError: an answer that is no JSON
            raise self._error(self._error_text(error)) from None
        reply = self._text(completion)
        if self._cache is not None:
            self._cache.put(key, reply)
        return reply

    def _text(self, completion: Any) -> str:
        """Returns the reply's text; an empty, cut or malformed reply is a `ChatError`."""
        choices = getattr(completion, "choices", None)
        choice = choices[0] if isinstance(choices, list) and choices else None
        if getattr(choice, "finish_reason", None) == "length":
            raise self._error("the reply was cut: raise its max_tokens")
        content = getattr(getattr(choice, "message", None), "content", None)
        if not isinstance(content, str) or not content.strip():
            raise self._error("the answer has no text")
        return content

    def _error_text(self, error: Exception) -> str:
        """Returns a description of the error, with the number of attempts if it was retried."""
        from openai import APIConnectionError, APIStatusError, APITimeoutError

        attempts = f" (tried {self._max_retries + 1} times)" if self._max_retries else ""
        if isinstance(error, APITimeoutError):
            return f"no answer within {self._timeout_s:g} s{attempts}"
        if isinstance(error, APIConnectionError):
            return f"cannot be reached: {error.__cause__ or error}{attempts}"
        if isinstance(error, APIStatusError):
            is_retried = error.status_code in (408, 409, 429) or error.status_code >= 500
            return f"{error.message}{attempts if is_retried else ''}"
        return str(error)

    def _error(self, reason: str) -> ChatError:
        line = " ".join(f"model {self.model} at {self.base_url}: {reason}".split())
        if self._api_key != NO_KEY:
            line = line.replace(self._api_key, "***")
        return ChatError(line[:MAX_ERROR_CHARACTERS], code=Code.CHAT_NO_ANSWER)


class _LoopState:
    """The connections, slots and shared calls of a client in one event loop."""

    def __init__(self, max_parallel: int, client: AsyncOpenAI) -> None:
        self.loop = asyncio.get_running_loop()
        self.slots = asyncio.Semaphore(max_parallel)
        self.client = client
        self.calls = SharedCalls[str]()


def checked_url(base_url: str) -> str:
    """Returns the address, or raises a `ConfigError` if it holds a login: it is written to the run
    folder."""
    try:
        return checked_address(base_url)
    except ValueError as error:
        raise ConfigError(
            f"base_url: {error} (a key is read from {CHAT_KEY_VARIABLES[0]})",
            code=Code.CHAT_ADDRESS,
        ) from None


def _key_from_environment() -> str:
    return api_key(CHAT_KEY_VARIABLES)


def _hash(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
