"""OpenAI's own clients over the trained model, without a socket.

    client = model_tuner.as_raw_openai_sdk_client()          # AsyncOpenAI, in `async def execute`
    client = model_tuner.as_raw_openai_sdk_client(sync=True) # OpenAI, in `def execute` (a thread)

The client's HTTP transport passes each request to the gateway's code: requests are served and
refused as over HTTP (gateway/dialects), but there is no limit on the size of a body, and the
client's timeout has no effect. Importing this module imports the `openai` package: only tuner.py
imports it, when it is needed.
"""

from __future__ import annotations

import httpx2 as httpx
from openai import AsyncOpenAI, OpenAI

from ajet.core.workflow.bridge import run_blocking, run_on_loop
from ajet.core.workflow.gateway.dialects import DIALECTS
from ajet.core.workflow.gateway.gateway import (
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


def async_client(gateway: Gateway, grant: Grant) -> AsyncOpenAI:
    """Returns a client for code on an event loop."""
    transport = httpx.AsyncClient(transport=_Transport(gateway, grant))
    return AsyncOpenAI(base_url=BASE_URL, api_key=_NO_KEY, http_client=transport, max_retries=0)


def sync_client(gateway: Gateway, grant: Grant) -> OpenAI:
    """Returns a client for code in a thread; a call on the event loop's own thread is an error."""
    transport = httpx.Client(transport=_Transport(gateway, grant))
    return OpenAI(base_url=BASE_URL, api_key=_NO_KEY, http_client=transport, max_retries=0)


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
        return _response(run_blocking(self._grant.recorder.loop, answering))

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
