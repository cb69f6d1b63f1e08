"""OpenAI's own clients over the trained model, without a socket.

    client = model_tuner.as_raw_openai_sdk_client()          # AsyncOpenAI, in `async def execute`
    client = model_tuner.as_raw_openai_sdk_client(sync=True) # OpenAI, in `def execute` (a thread)
    reply = await client.chat.completions.create(messages)   # `model=` may be left out

The client's HTTP transport passes each request to the gateway's code, without a limit of a body's
size, and the client's timeout has no effect. Importing this module imports the `openai` package, so
tuner.py does it late.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import httpx2 as httpx
from openai import AsyncOpenAI, OpenAI
from openai.resources.chat import AsyncChat, AsyncCompletions, Chat, Completions

from ajet.core.workflow.bridge import run_blocking, run_on_loop
from ajet.core.workflow.gateway.dialects import DIALECTS
from ajet.core.workflow.gateway.gateway import (
    MODEL,
    Gateway,
    GatewayResponse,
    dialect_at,
    error_response,
    models_response,
)
from ajet.core.workflow.gateway.keys import Grant
from ajet.core.workflow.gateway.request import RequestError

BASE_URL = "http://ajet.invalid/v1"
_NO_KEY = "in-process"
POSITIONAL = ("messages", "tools", "tool_choice")
"""The fields of a chat request that may be given by position, in AgentJet's order."""


def async_client(gateway: Gateway, grant: Grant) -> AsyncOpenAI:
    """Returns a client for code on an event loop."""
    transport = httpx.AsyncClient(transport=_Transport(gateway, grant))
    return _AsyncClient(base_url=BASE_URL, api_key=_NO_KEY, http_client=transport, max_retries=0)


def sync_client(gateway: Gateway, grant: Grant) -> OpenAI:
    """Returns a client for code in a thread; a call on the event loop's own thread is an error."""
    transport = httpx.Client(transport=_Transport(gateway, grant))
    return _Client(base_url=BASE_URL, api_key=_NO_KEY, http_client=transport, max_retries=0)


def other_async_client(model: str) -> AsyncOpenAI:
    """Returns a client of the server that the environment names, whose calls all go to `model`."""

    class OtherClient(_AsyncClient):
        other_model = model

    return OtherClient()


def other_sync_client(model: str) -> OpenAI:
    """Returns `other_async_client`'s twin for code in a thread."""

    class OtherClient(_Client):
        other_model = model

    return OtherClient()


class _AsyncClient(AsyncOpenAI):
    """Takes calls without `model=`, and messages by position. With `other_model` all calls go to
    that model."""

    other_model: str | None = None

    @cached_property
    def chat(self) -> AsyncChat:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _AsyncChat(self)


class _AsyncChat(AsyncChat):
    @cached_property
    def completions(self) -> AsyncCompletions:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _AsyncCompletions(self._client)


class _AsyncCompletions(AsyncCompletions):
    async def create(self, *arguments: Any, **fields: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return await super().create(**_all_fields(self._client, arguments, fields))


class _Client(OpenAI):
    """Takes calls as `_AsyncClient` does."""

    other_model: str | None = None

    @cached_property
    def chat(self) -> Chat:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Chat(self)


class _Chat(Chat):
    @cached_property
    def completions(self) -> Completions:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Completions(self._client)


class _Completions(Completions):
    def create(self, *arguments: Any, **fields: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().create(**_all_fields(self._client, arguments, fields))


def _all_fields(client: Any, arguments: tuple[Any, ...], fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a request whose first ones may be positional."""
    if len(arguments) > len(POSITIONAL):
        raise TypeError(f"create() takes {', '.join(POSITIONAL)} by position, and no more")
    by_name = dict(zip(POSITIONAL, arguments, strict=False))
    if twice := [name for name in by_name if name in fields]:
        raise TypeError(f"create() got {twice[0]} by position and by name")
    model = client.other_model or fields.get("model") or MODEL
    return {**by_name, **fields, "model": model}


class _Transport(httpx.AsyncBaseTransport, httpx.BaseTransport):
    """The HTTP transport of both clients, synchronous and asynchronous, over the gateway."""

    def __init__(self, gateway: Gateway, grant: Grant) -> None:
        self._gateway = gateway
        self._grant = grant

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        return _response(await run_on_loop(self._grant.recorder.loop, self._answer(request, body)))

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answering = self._answer(request, request.read())
        return _response(run_blocking(self._grant.recorder, answering))

    async def _answer(self, request: httpx.Request, body: bytes) -> GatewayResponse:
        if request.method == "GET" and (listing := models_response(request.url.path)) is not None:
            return listing
        dialect = dialect_at(request.url.path) if request.method == "POST" else None
        if dialect is None:
            missing = RequestError(f"{request.method} {request.url.path} is not served", status=404)
            return error_response(DIALECTS[0], missing)
        return await self._gateway.respond(dialect, self._grant, body)


def _response(answer: GatewayResponse) -> httpx.Response:
    body = answer.body if answer.events is None else "".join(answer.events).encode()
    return httpx.Response(answer.status, headers=answer.headers, content=body)
