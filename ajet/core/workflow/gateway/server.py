"""The gateway's HTTP server: FastAPI on uvicorn, in a separate thread.

    POST /v1/chat/completions, /v1/responses, /v1/messages      one for each dialect
    GET  /v1/models, /v1/models/{id}

The key comes as ``Authorization: Bearer …`` or ``x-api-key: …``. If a client disconnects, its call
is cancelled. Importing this module imports FastAPI, so gateway.py does it late.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException

from ajet.core.net.http_server import ServerLimits, ServerThread, listening_socket
from ajet.core.workflow.gateway.dialects import DIALECTS, Dialect
from ajet.core.workflow.gateway.dialects.dialect import openai_error
from ajet.core.workflow.gateway.gateway import (
    Gateway,
    GatewayResponse,
    error_response,
    models_response,
)
from ajet.core.workflow.gateway.request import RequestError

MAX_BODY_BYTES = 32 << 20
LIMITS = ServerLimits(max_body_bytes=MAX_BODY_BYTES + (1 << 20))
"""Larger than the gateway's limit of a body, whose error has the client's form."""
PORT_KEY = "ajet.interchange_server.interchange_server_port"


class GatewayServer(ServerThread):
    """The HTTP server in a separate thread; it listens from its construction on."""

    def __init__(
        self, app: FastAPI, host: str, port: int | None, port_key: str = PORT_KEY, **options: Any
    ) -> None:
        """`port_key` is the config key to name in the error if the port is taken; `options` are
        those of `uvicorn.Config`."""
        listener = listening_socket(
            host, port or 0, "the model's gateway", f"set {port_key} to auto"
        )
        self.base_url = f"http://{host}:{listener.getsockname()[1]}/v1"
        super().__init__(app, listener, LIMITS, "ajet-gateway", **options)


def make_app(gateway: Gateway) -> FastAPI:
    """Returns the FastAPI app with the routes of all dialects."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    for dialect in DIALECTS:
        app.add_route(f"/v1{dialect.path}", _endpoint(gateway, dialect), methods=["POST"])
    for path in ("/v1/models", "/v1/models/{model}"):
        app.add_route(path, _models_endpoint(gateway), methods=["GET"])
    app.add_exception_handler(HTTPException, _not_served)
    return app


Endpoint = Callable[[Request], Awaitable[Response]]


def _endpoint(gateway: Gateway, dialect: Dialect) -> Endpoint:
    async def handle(request: Request) -> Response:
        try:
            grant = gateway.grant(key_of(request), request.headers)
            body = await body_of(request)
        except RequestError as error:
            return to_response(error_response(dialect, error))
        answering = asyncio.ensure_future(gateway.respond(dialect, grant, body))
        return await response_unless_disconnected(request, answering)

    return handle


def _models_endpoint(gateway: Gateway) -> Endpoint:
    async def handle(request: Request) -> Response:
        try:
            gateway.grant(key_of(request))
        except RequestError as error:
            return to_response(error_response(DIALECTS[0], error))
        listing = models_response(request.url.path, gateway.models)
        assert listing is not None
        return to_response(listing)

    return handle


async def response_unless_disconnected(
    request: Request, answering: asyncio.Future[GatewayResponse]
) -> Response:
    """Returns the response, and cancels the call if the client disconnects first."""
    gone = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
        return to_response(answering.result()) if answering.done() else Response(status_code=499)
    finally:
        answering.cancel()
        gone.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def body_of(request: Request) -> bytes:
    """Returns the whole body. Raises `RequestError` (413) once it exceeds the limit."""
    # The header may lie, so the bytes are counted too.
    chunks, size = [], int(request.headers.get("content-length") or 0)
    if size <= MAX_BODY_BYTES:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                break
            chunks.append(chunk)
    if size > MAX_BODY_BYTES:
        raise RequestError(f"the body has more than {MAX_BODY_BYTES} bytes", status=413)
    return b"".join(chunks)


def key_of(request: Request) -> str:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")


def to_response(answer: GatewayResponse) -> Response:
    if answer.events is not None:
        return StreamingResponse(answer.events, answer.status, answer.headers)
    return Response(answer.body, answer.status, answer.headers)


async def _not_served(request: Request, error: Exception) -> Response:
    """Returns the responses 404 and 405 in OpenAI's form."""
    status = getattr(error, "status_code", 404)
    served = ", ".join(f"/v1{dialect.path}" for dialect in DIALECTS)
    message = f"{request.method} {request.url.path} is not served; there are POST {served}"
    body = openai_error(RequestError(message, status=status, code="unknown_url"))
    return to_response(GatewayResponse(status, json.dumps(body).encode()))
