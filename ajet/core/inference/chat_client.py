"""A client for models behind an OpenAI-compatible API, for judges and data and not for training.

request --> cache --> the same one in flight? --> slot --> rate limit --> server
              ^                                               ^  |
              └────────── reply ──────────────────────────────┴──┘ 429, 5xx, no connection: again
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sqlite3
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ajet.core.errors import ChatError, ConfigError
from ajet.core.errors.codes import Code
from ajet.core.inference.openai_endpoint import KEY_VARIABLES, MAX_RETRIES, NO_KEY
from ajet.core.inference.openai_endpoint import api_key as key_from_environment
from ajet.core.net.address import checked_address
from ajet.core.process.shared_call import SharedCalls

if TYPE_CHECKING:
    from openai import AsyncOpenAI

CHAT_KEY_VARIABLES = ("AJET_JUDGE_API_KEY", *KEY_VARIABLES)
OPENAI_URL = "https://api.openai.com/v1"
MAX_ERROR_CHARACTERS = 300
WINDOW_S = 60.0
CACHE_WAIT_S = 10.0  # the longest wait for another process that writes
_CACHE_TABLE = "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, reply TEXT NOT NULL)"

Result = TypeVar("Result")
Message = Mapping[str, Any]


class ChatClient:
    """Sends chat requests to `model` at `base_url` (default: OPENAI_BASE_URL, then OpenAI's).

    The default for `api_key` is AJET_JUDGE_API_KEY, AJET_ENDPOINT_API_KEY or OPENAI_API_KEY in the
    environment. `timeout_s` is for each attempt, until its whole answer has arrived.

    Equal requests (model, address, messages, sampling) get the same answer: concurrent ones are
    sent once, and with a cache never again. Another `seed=` makes a different request. A client
    serves one event loop at a time; on a new loop it opens new connections.
    """

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
        try:
            self.base_url = checked_address(
                base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
            )
        except ValueError as error:  # a login, which the run folder would record
            raise ConfigError(
                f"base_url: {error} (a key is read from {CHAT_KEY_VARIABLES[0]})",
                code=Code.CHAT_ADDRESS,
            ) from None
        self._api_key = api_key or key_from_environment(CHAT_KEY_VARIABLES)
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
        """Returns the reply's text, or raises a `ChatError` of one line. `sampling` are further
        fields of the request (temperature, max_tokens, seed, …), also a server's extensions."""
        request = {"model": self.model, "messages": list(messages), **sampling}
        text = json.dumps({"base_url": self.base_url, **request}, sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()
        cached = self._cache.get(key) if self._cache else None
        if cached is not None:
            return cached
        # Connections and semaphores belong to an event loop: those of an earlier loop are dropped.
        loop = asyncio.get_running_loop()
        if self._loop_state is None or self._loop_state.loop is not loop:
            self._loop_state = _LoopState(self._max_parallel, self._connect())
        state = self._loop_state
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

    def _connect(self) -> AsyncOpenAI:
        from openai import AsyncOpenAI

        from ajet.core.net.http_client import openai_http_client

        async def wait_for_rate(_request: object) -> None:
            if self._rate is not None:
                await self._rate.wait()

        # A hook runs before every attempt, so that retries count in the rate limit too.
        hooks = {"request": [wait_for_rate]}
        return AsyncOpenAI(
            base_url=self.base_url,
            api_key=self._api_key,
            timeout=self._timeout_s,
            max_retries=self._max_retries,
            http_client=openai_http_client(event_hooks=hooks),
        )

    async def _send(
        self, state: _LoopState, key: str, messages: list[Any], sampling: dict[str, Any]
    ) -> str:
        from openai import OpenAIError

        try:
            async with state.slots:
                completion = await state.client.chat.completions.create(
                    model=self.model, messages=messages, extra_body=sampling
                )
        except (OpenAIError, ValueError) as error:  # ValueError: the answer is not JSON
            raise self._error(self._error_text(error)) from None
        reply = self._text(completion)
        if self._cache is not None:
            self._cache.put(key, reply)
        return reply

    def _text(self, completion: Any) -> str:
        """Returns the reply's text; raises `ChatError` if it is empty, cut or malformed."""
        choices = getattr(completion, "choices", None)
        choice = choices[0] if isinstance(choices, list) and choices else None
        if getattr(choice, "finish_reason", None) == "length":
            raise self._error("the reply was cut: raise its max_tokens")
        content = getattr(getattr(choice, "message", None), "content", None)
        if not isinstance(content, str) or not content.strip():
            raise self._error("the answer has no text")
        return content

    def _error_text(self, error: Exception) -> str:
        """Returns the error's text, with the number of attempts if it was retried."""
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


class RateLimit:
    """Allows `per_minute` starts in any 60 seconds. Tests pass their own `clock` and `sleep`.

    A call reserves the next free start immediately and sleeps until then, so calls start in the
    order in which they came.
    """

    def __init__(
        self,
        per_minute: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._starts_s: deque[float] = deque(maxlen=per_minute)  # of the latest calls

    async def wait(self) -> None:
        now_s = self._clock()
        is_full = len(self._starts_s) == self._starts_s.maxlen
        start_s = max(now_s, self._starts_s[0] + WINDOW_S) if is_full else now_s
        self._starts_s.append(start_s)
        if start_s > now_s:
            await self._sleep(start_s - now_s)


class ReplyCache:
    """Stores texts by key in one SQLite file that several processes may share; the first look-up
    creates it. Raises `ChatError` if the file cannot be used.

    A look-up takes about ten microseconds, so it runs on the event loop. There is no write-ahead
    log: it would not work on a network disk that several machines share
    (docs/adr/0021-staleness.md).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None

    def get(self, key: str) -> str | None:
        query = "SELECT reply FROM replies WHERE key = ?"
        row = self._try(lambda: self._open().execute(query, (key,)).fetchone())
        return None if row is None else row[0]

    def put(self, key: str, reply: str) -> None:
        """Stores a reply; an existing one is kept, so that all processes use the same."""
        row = (key, reply)
        self._try(lambda: self._open().execute("INSERT OR IGNORE INTO replies VALUES (?, ?)", row))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(
                self.path, isolation_level=None, timeout=CACHE_WAIT_S, check_same_thread=False
            )
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(_CACHE_TABLE)
            self._connection = connection
        return self._connection

    def _try(self, action: Callable[[], Result]) -> Result:
        try:
            return action()
        except (sqlite3.Error, OSError) as error:
            raise ChatError(
                f"cache {self.path} cannot be used: {error}; move it away", code=Code.CACHE_UNUSABLE
            ) from error
