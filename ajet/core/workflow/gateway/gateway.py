"""The model behind an HTTP address, for agents in any process and language.

    gateway.open(grant)      -> Address(base_url, api_key): the server starts with the first one
    gateway.respond(…)       one request, parsed, sampled on its episode's event loop, and answered
    gateway.close()          at the end of the run

The server (server.py) listens on loopback and has a separate event loop, so it can answer with an
error when a workflow blocks the loop that the model runs on.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from loguru import logger

from ajet.core.errors import AjetError
from ajet.core.text.redaction import PREFIX
from ajet.core.trajectory.base_recorder import running_loop
from ajet.core.trajectory.limits import EndpointFault, EpisodeClosed, EpisodeTruncated
from ajet.core.workflow.bridge import run_on_loop
from ajet.core.workflow.gateway.dialects import DIALECTS, Dialect
from ajet.core.workflow.gateway.keys import Grant, KeyRing
from ajet.core.workflow.gateway.request import ChatRequest, RequestError, sample

if TYPE_CHECKING:
    from ajet.core.trajectory.turn import Turn
    from ajet.core.workflow.gateway.server import GatewayServer

HOST = "127.0.0.1"
MODEL = "ajet"
NO_HEADERS: Mapping[str, str] = {}
STALL_S = 10.0
"""Seconds that an episode's event loop may be blocked before its agent gets an error."""


class Address(NamedTuple):
    """The base URL and the key of an agent's model. `repr` hides the key."""

    base_url: str
    api_key: str

    @property
    def model(self) -> str:
        """A model name for clients that need one; the gateway takes any."""
        return MODEL

    @property
    def anthropic(self) -> tuple[str, str]:
        """The URL and key for Anthropic's clients, which add ``/v1`` to the URL themselves."""
        return self.base_url.removesuffix("/v1"), self.api_key

    def __repr__(self) -> str:
        return f"Address(base_url={self.base_url!r}, api_key='{PREFIX}…')"


@dataclass(frozen=True, slots=True)
class GatewayResponse:
    """Holds an HTTP response with one body, or with a stream of events. `more_headers` are added to
    those of every response."""

    status: int
    body: bytes = b""
    events: Iterator[str] | None = None
    more_headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP headers. Those of an error keep the providers' clients from retrying."""
        content_type = "application/json" if self.events is None else "text/event-stream"
        no_retry = {"x-should-retry": "false"} if self.status >= 400 else {}
        return {"content-type": content_type, **no_retry, **self.more_headers}


class Gateway:
    """Serves the model to the agents of a run. Its HTTP server starts with the first address."""

    def __init__(self, port: int | None = None, stall_s: float = STALL_S) -> None:
        """`port=None` means any free port."""
        self.keys = KeyRing()
        self.models: Sequence[str] = [MODEL]
        self.port = port
        self._stall_s = stall_s
        self._lock = threading.Lock()
        self._server: GatewayServer | None = None

    def open(self, grant: Grant) -> Address:
        """Returns an address and a new key for the agent of this grant."""
        return Address(self.listen(), self.keys.issue(grant))

    def listen(self) -> str:
        """Starts the server if it does not run, and returns its base URL."""
        with self._lock:
            if self._server is None:
                self._server = self.make_server()
            return self._server.base_url

    def make_server(self) -> GatewayServer:
        """Makes the HTTP server, which listens at once."""
        from ajet.core.workflow.gateway.server import GatewayServer, make_app

        return GatewayServer(make_app(self), HOST, self.port)

    def close(self, finish_s: int = 1) -> None:
        """Stops the server, if one runs; requests under way have `finish_s` seconds to end."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.close(finish_s)

    async def respond(self, dialect: Dialect, grant: Grant, body: bytes) -> GatewayResponse:
        """Returns the response to a request in this dialect; errors are responses too."""
        try:
            request = dialect.parse(parse_json_object(body), grant)
            turns = await self._sample(grant, request)
            grant.recorder.refused_request = None
            if request.stream:
                return GatewayResponse(
                    200, events=iter(list(dialect.events(request, turns, grant)))
                )
            return GatewayResponse(200, _encode_json(dialect.reply(request, turns, grant)))
        except RequestError as error:
            grant.recorder.refused_request = f"{error.status}, {error}"
            return error_response(dialect, error)
        except Exception as error:  # noqa: BLE001  # the edge of a server: one line, not a traceback
            logger.warning(f"the gateway failed at a request: {type(error).__name__}: {error}")
            fault = RequestError(
                f"{type(error).__name__}: {error}", status=500, error_type="server_error"
            )
            return error_response(dialect, fault)

    def grant(self, key: str, headers: Mapping[str, str] = NO_HEADERS) -> Grant:
        """Returns the grant of a key. Raises `RequestError` (401) if it is forged, foreign or
        revoked. Subclasses may use the `headers` of the request."""
        grant = self.keys.find(key)
        if grant is None:
            raise RequestError(
                "unknown key: a key is good for one agent of one episode, until that ends",
                status=401,
                code="invalid_api_key",
            )
        return grant

    async def _sample(self, grant: Grant, request: ChatRequest) -> list[Turn]:
        try:
            return await self._run_on_episode_loop(grant, sample(grant, request))
        except EpisodeClosed as over:
            raise RequestError(str(over), status=401, code="episode_over") from over
        except EpisodeTruncated as error:
            raise RequestError(str(error), code="context_length_exceeded") from error
        except EndpointFault as fault:
            raise RequestError(str(fault), status=502, error_type="server_error") from fault
        except (AjetError, ValueError, RecursionError) as error:
            # The request's own fault: no such tool, or messages that the template cannot render.
            raise RequestError(str(error)) from error

    async def _run_on_episode_loop(
        self, grant: Grant, call: Coroutine[Any, Any, list[Turn]]
    ) -> list[Turn]:
        loop = grant.recorder.loop
        if loop is None or loop is running_loop():
            return await call
        task = asyncio.ensure_future(run_on_loop(loop, call))
        # A call may take long. As long as the episode's loop responds, it is only slow.
        try:
            while not (await asyncio.wait({task}, timeout=self._stall_s / 2))[0]:
                await self.check_loop_responds(loop, grant)
            return task.result()
        finally:
            task.cancel()

    async def check_loop_responds(self, loop: asyncio.AbstractEventLoop, grant: Grant) -> None:
        """Raises `RequestError` (503) if the episode's event loop is blocked."""
        own_loop, alive = asyncio.get_running_loop(), asyncio.Event()
        if not loop.is_closed():
            loop.call_soon_threadsafe(lambda: own_loop.call_soon_threadsafe(alive.set))
        try:
            await asyncio.wait_for(alive.wait(), self._stall_s / 2)
        except TimeoutError:
            grant.recorder.on_blocking()
            raise RequestError(
                "a workflow of this run blocks the event loop that the model runs on: write `def "
                "execute`, which runs in a separate thread, or use an asynchronous client",
                status=503,
                error_type="server_error",
                code="event_loop_blocked",
            ) from None


def error_response(dialect: Dialect, error: RequestError) -> GatewayResponse:
    """Returns the response for an error, in this dialect."""
    return GatewayResponse(error.status, _encode_json(dialect.error_body(error)))


def dialect_at(path: str) -> Dialect | None:
    """Returns the dialect of a path such as ``/v1/chat/completions``, or None."""
    return next((dialect for dialect in DIALECTS if path == f"/v1{dialect.path}"), None)


def models_response(path: str, models: Sequence[str] = (MODEL,)) -> GatewayResponse | None:
    """Returns the response to ``GET /v1/models`` or ``GET /v1/models/{id}``; an unknown id gets the
    first model."""
    fixed = {"object": "model", "created": 0, "owned_by": "ajet"}
    entries = {name: {"id": name, **fixed} for name in models}
    if path == "/v1/models":
        return GatewayResponse(200, _encode_json({"object": "list", "data": [*entries.values()]}))
    if not path.startswith("/v1/models/"):
        return None
    entry = entries.get(path.removeprefix("/v1/models/"), entries[models[0]])
    return GatewayResponse(200, _encode_json(entry))


def parse_json_object(body: bytes) -> Mapping[str, Any]:
    """Parses a body that is a JSON object. Raises `RequestError` for any other."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object")
    return value


def _encode_json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body).encode()
