"""A client of AgentJet's environment protocol over HTTP: every call is a POST with the same fields.

POST /create  {"env_type", "task_id", "instance_id", "messages", "params"}
          ->  {"success": true, "data": {"state", "reward", "is_terminated", "info"}}
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

from ajet.core.errors import ConfigError, EnvironmentFault
from ajet.core.errors.codes import Code
from ajet.core.task.reader import MAX_ID_LENGTH
from ajet.core.text.plain_value import plain_text, printable
from ajet.core.user_code.activity import in_call

TIMEOUT_S = 300.0
BACKOFF_S = 0.5
MAX_RETRIES = 3
SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Observation:
    """What the environment shows: chat messages, the reward, and whether it is over."""

    state: list[dict[str, Any]]
    reward: float
    is_terminated: bool
    info: dict[str, Any]

    @property
    def text(self) -> str:
        return "\n".join(str(message.get("content") or "") for message in self.state)

    def instance_id(self, requested_id: str) -> str:
        """Returns the id that the service gave the instance, or `requested_id` if it gave none.
        Raises EnvironmentFault for an id that cannot be sent back."""
        instance_id = self.info.get("instance_id")
        if not isinstance(instance_id, str | int) or not instance_id:
            return requested_id
        if plain_text(instance_id, MAX_ID_LENGTH) != str(instance_id):
            raise EnvironmentFault(
                f"create: data.info.instance_id has more than {MAX_ID_LENGTH} characters, or a "
                f"lone surrogate: {_line(str(instance_id))}"
            )
        return str(instance_id)


class EnvServiceClient:
    """A connection to the service, for one event loop. Close it with `close()` or `async with`. A
    call that still fails after its retries (`_may_retry`), or whose answer is too large or too
    late, raises an `EnvironmentFault` of one line."""

    def __init__(
        self,
        base_url: str,
        env_type: str,
        *,
        timeout_s: float = TIMEOUT_S,
        backoff_s: float = BACKOFF_S,
    ) -> None:
        from ajet.core.net.http_client import LimitedAsyncClient

        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"ajet.task_reader.env_service.env_url: {base_url!r}: an address begins with "
                "http:// or https://",
                code=Code.ENVIRONMENT_SERVICE,
            )
        self.base_url = base_url.rstrip("/")
        self.env_type = env_type
        self._waits_s = [backoff_s * 2**number for number in range(MAX_RETRIES)]
        self._http = LimitedAsyncClient(timeout=timeout_s, verify=_ssl_context())

    async def task_ids(self, split: str) -> list[str]:
        """Returns the ids of one split's tasks, in the service's order."""
        reply = await self._post("get_env_profile", params={"split": split})
        ids = reply["data"] if "data" in reply else reply.get("task_ids")
        if not isinstance(ids, list) or not all(isinstance(name, str | int) for name in ids):
            raise EnvironmentFault(f"{self._url('get_env_profile')}: no list of task ids in data")
        names = [str(name) for name in ids]
        odd = next((name for name in names if plain_text(name, MAX_ID_LENGTH) != name), None)
        if odd is not None:
            raise EnvironmentFault(
                f"{self._url('get_env_profile')}: data has an id of more than {MAX_ID_LENGTH} "
                f"characters, or with a lone surrogate: {_line(odd)}"
            )
        return names

    async def create(
        self, task_id: str, instance_id: str, params: Mapping[str, Any] | None = None
    ) -> Observation:
        """Creates an instance and returns its first observation; `info.instance_id` may give it
        another id."""
        reply = await self._post("create", task_id=task_id, instance_id=instance_id, params=params)
        return self._observation("create", reply)

    async def step(
        self,
        instance_id: str,
        action: Mapping[str, Any],
        params: Mapping[str, Any] | None = None,
    ) -> Observation:
        reply = await self._post("step", instance_id=instance_id, messages=action, params=params)
        return self._observation("step", reply)

    async def evaluate(self, instance_id: str, params: Mapping[str, Any] | None = None) -> float:
        reply = await self._post("evaluate", instance_id=instance_id, params=params)
        return _number(reply.get("data"), f"{self._url('evaluate')}: data")

    async def info(self, instance_id: str, params: Mapping[str, Any] | None = None) -> Any:
        """Returns what the environment says about itself, such as its tools."""
        return (await self._post("get_info", instance_id=instance_id, params=params)).get("data")

    async def release(self, instance_id: str) -> None:
        await self._post("release", instance_id=instance_id)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _post(self, verb: str, **fields: Any) -> dict[str, Any]:
        """Sends one request, with retries, and returns the reply's JSON. `fields` are the non-empty
        fields of the body."""
        import httpx

        body = {
            "env_type": self.env_type,
            "task_id": fields.get("task_id"),
            "instance_id": fields.get("instance_id"),
            "messages": dict(fields.get("messages") or {}),
            "params": dict(fields.get("params") or {}),
        }
        for wait_s in (*self._waits_s, None):  # None: the last attempt
            try:
                with in_call(f"environment {self.env_type}, {verb}"):
                    response = await self._http.post(self._url(verb), json=body)
                response.raise_for_status()
                return self._reply(verb, response)
            except httpx.HTTPError as error:
                if wait_s is None or not _may_retry(error, verb):
                    raise EnvironmentFault(f"{self._url(verb)}: {_error_line(error)}") from error
            await asyncio.sleep(wait_s)
        raise AssertionError("the last round returns or raises")

    def _url(self, verb: str) -> str:
        return f"{self.base_url}/{verb}"

    def _reply(self, verb: str, response: Any) -> dict[str, Any]:
        try:
            reply = response.json()
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict):
            raise EnvironmentFault(f"{self._url(verb)}: the answer is not a JSON object")
        if reply.get("success", True) not in (True, None):
            raise EnvironmentFault(f"{self._url(verb)}: {_detail(reply)}")
        return reply

    def _observation(self, verb: str, reply: Mapping[str, Any]) -> Observation:
        data, location = reply.get("data"), f"{self._url(verb)}: data"
        if not isinstance(data, Mapping):
            raise EnvironmentFault(
                f"{location} is not an object with state, reward and is_terminated"
            )
        state = _messages(data.get("state"), f"{location}.state")
        sent_reward, info = data.get("reward"), data.get("info")  # null counts as missing
        reward = 0.0 if sent_reward is None else _number(sent_reward, f"{location}.reward")
        is_over = data.get("is_terminated")
        if is_over not in (True, False, None):
            shown = _line(repr(is_over))
            raise EnvironmentFault(f"{location}.is_terminated is neither true nor false: {shown}")
        if not isinstance(info, Mapping | None):
            raise EnvironmentFault(f"{location}.info is not an object: {_line(repr(info))}")
        return Observation(state, reward, bool(is_over), dict(info or {}))


@cache
def _ssl_context() -> ssl.SSLContext:
    """Returns a shared context: reading the certificates takes longer than an episode's calls."""
    return ssl.create_default_context()


def _may_retry(error: Exception, verb: str) -> bool:
    """Returns whether a failed request may be sent again. A `/step` may not once it has reached the
    service: the action may have been done, and doing it twice would change the episode."""
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        status = error.response.status_code
        # 429 and 503: refused before anything was done.
        return status in (429, 503) or (status >= 500 and verb != "step")
    if isinstance(error, httpx.DecodingError):
        return False
    # It did not reach the service.
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return True
    # The connection broke. After a timeout, waiting as long again is not worth it.
    return verb != "step" and not isinstance(error, httpx.TimeoutException)


def _error_line(error: Exception) -> str:
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        answer = error.response
        if answer.has_redirect_location:
            return (
                f"HTTP {answer.status_code}: it redirects to {_line(answer.headers['location'])}, "
                "which is not followed; write the service's final address"
            )
        try:
            detail = _detail(answer.json())
        except (ValueError, RecursionError):
            detail = _line(answer.text)
        return f"HTTP {answer.status_code}: {detail}" if detail else f"HTTP {answer.status_code}"
    if isinstance(error, httpx.DecodingError):
        return _line(str(error))
    if isinstance(error, httpx.TimeoutException):
        return f"no answer in time ({type(error).__name__})"
    return f"cannot be reached or broke off ({type(error).__name__}: {_line(str(error))})"


def _detail(reply: Any) -> str:
    """Returns the reason in a service's reply: FastAPI's `detail`, or another usual field."""
    fields = reply if isinstance(reply, Mapping) else {}
    detail = next((fields[name] for name in ("detail", "error", "data") if fields.get(name)), None)
    return _line(str(detail)) if detail else "the service refused and gave no reason"


def _line(text: str) -> str:
    return printable(" ".join(text.split())[:SHOWN_CHARACTERS])


def _messages(state: Any, location: str) -> list[dict[str, Any]]:
    """Returns the state as a list of chat messages. It may be a message, a list of them, or text,
    which becomes a user message."""
    if isinstance(state, str):
        return [{"role": "user", "content": state}]
    messages = [state] if isinstance(state, Mapping) else state
    if not isinstance(messages, list) or not all(isinstance(m, Mapping) for m in messages):
        raise EnvironmentFault(f"{location} is neither a chat message nor a list of them")
    if not messages:
        raise EnvironmentFault(f"{location} is an empty list")
    for message in messages:
        has_content = isinstance(message.get("content"), str | list | None)
        if not isinstance(message.get("role"), str) or not has_content:
            raise EnvironmentFault(
                f"{location} is not a chat message: {_line(repr(dict(message)))}"
            )
    return [dict(message) for message in messages]


def _number(value: Any, location: str) -> float:
    try:
        if isinstance(value, bool | int | float) and math.isfinite(value):
            return float(value)
    except OverflowError:  # an integer too large for a float
        raise EnvironmentFault(f"{location} is too large a number") from None
    raise EnvironmentFault(f"{location} is not a finite number: {_line(repr(value))}")
