"""The model as an HTTP address, for agents in any process and language.

    gateway.open(grant)      -> Address(base_url, api_key): the server starts with the first one
    gateway.answer(…)        one request, parsed, sampled on its episode's event loop, and answered
    gateway.close()          at the end of the run

The server (server.py) runs in a thread with an event loop of its own, on loopback: it answers, with
an error, even while a workflow blocks the loop that the model runs on.

Not covered: TLS, other hosts (a gateway is for processes of this machine).
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from loguru import logger

from ajet.core.errors import AjetError
from ajet.core.redaction import PREFIX
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
STALL_S = 10.0
"""So long may an episode's event loop stand still before its agent hears of it."""


class Address(NamedTuple):
    """Where an agent finds its model. The key is shown to nobody by accident: not by `repr`."""

    base_url: str
    api_key: str

    @property
    def model(self) -> str:
        """A name for clients that insist on one; any will do."""
        return MODEL

    @property
    def anthropic(self) -> tuple[str, str]:
        """The same for Anthropic's clients, which add ``/v1`` to the base URL themselves."""
        return self.base_url.removesuffix("/v1"), self.api_key

    def __repr__(self) -> str:
        return f"Address(base_url={self.base_url!r}, api_key='{PREFIX}…')"


@dataclass(frozen=True, slots=True)
class GatewayResponse:
    """A response: one body, or events."""

    status: int
    body: bytes = b""
    events: Iterator[str] | None = None

    @property
    def headers(self) -> dict[str, str]:
        """A repetition mends no refusal, and these clients ask before they repeat."""
        kind = "application/json" if self.events is None else "text/event-stream"
        return {"content-type": kind} | ({"x-should-retry": "false"} if self.status >= 400 else {})


class Gateway:
    """One for a run; made without a server, which starts when an agent asks for an address."""

    def __init__(self, port: int | None = None, stall_s: float = STALL_S) -> None:
        """`port` None: any that is free."""
        self.keys = KeyRing()
        self._port = port
        self._stall_s = stall_s
        self._lock = threading.Lock()
        self._server: GatewayServer | None = None

    def open(self, grant: Grant) -> Address:
        """An address and a key for the agent of this grant."""
        return Address(self.listen(), self.keys.issue(grant))

    def listen(self) -> str:
        """The base URL; the server starts if it has not."""
        with self._lock:
            if self._server is None:
                from ajet.core.workflow.gateway.server import GatewayServer

                self._server = GatewayServer(self, HOST, self._port)
            return self._server.base_url

    def close(self) -> None:
        """Stop the server, if one runs."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.close()

    async def answer(self, dialect: Dialect, grant: Grant, body: bytes) -> GatewayResponse:
        """What a request in this dialect gets. All that can go wrong is an answer too."""
        try:
            request = dialect.parse(_parse_json_object(body), grant)
            turns = await self._sample(grant, request)
            if request.stream:
                return GatewayResponse(
                    200, events=iter(list(dialect.events(request, turns, grant)))
                )
            return GatewayResponse(200, _encode_json(dialect.reply(request, turns, grant)))
        except RequestError as refusal:
            return error_response(dialect, refusal)
        except Exception as error:  # noqa: BLE001  # the edge of a server: one line, not a traceback
            logger.warning(f"the gateway failed at a request: {type(error).__name__}: {error}")
            fault = RequestError(
                f"{type(error).__name__}: {error}", status=500, kind="server_error"
            )
            return error_response(dialect, fault)

    def grant(self, key: str) -> Grant:
        """Whose key it is; `RequestError` (401) for one that is forged, foreign or dead."""
        found = self.keys.find(key)
        if found is None:
            raise RequestError(
                "unknown key: a key is good for one agent of one episode, until that ends",
                status=401,
                code="invalid_api_key",
            )
        return found

    async def _sample(self, grant: Grant, request: ChatRequest) -> list[Turn]:
        try:
            return await self._run_on_episode_loop(grant, sample(grant, request))
        except EpisodeClosed as over:
            raise RequestError(str(over), status=401, code="episode_over") from over
        except EpisodeTruncated as error:
            raise RequestError(str(error), code="context_length_exceeded") from error
        except EndpointFault as fault:
            raise RequestError(str(fault), status=502, kind="server_error") from fault
        except (
            AjetError,
            ValueError,
            RecursionError,
        ) as error:  # no such tool, a template that cannot render
            raise RequestError(str(error)) from error

    async def _run_on_episode_loop(
        self, grant: Grant, call: Coroutine[Any, Any, list[Turn]]
    ) -> list[Turn]:
        loop = grant.recorder.loop
        if loop is None or loop is running_loop():
            return await call
        task = asyncio.ensure_future(run_on_loop(loop, call))
        try:
            while not (await asyncio.wait({task}, timeout=self._stall_s / 2))[0]:
                await self._check_loop_responds(loop)
            return task.result()
        finally:
            task.cancel()

    async def _check_loop_responds(self, loop: asyncio.AbstractEventLoop) -> None:
        own_loop, alive = asyncio.get_running_loop(), asyncio.Event()
        if not loop.is_closed():
            loop.call_soon_threadsafe(lambda: own_loop.call_soon_threadsafe(alive.set))
        try:
            await asyncio.wait_for(alive.wait(), self._stall_s / 2)
        except TimeoutError:
            raise RequestError(
                "a workflow of this run blocks the event loop that the model runs on: write `def "
                "execute`, which runs in a thread of its own, or use an asynchronous client",
                status=503,
                kind="server_error",
                code="event_loop_blocked",
            ) from None


def error_response(dialect: Dialect, refusal: RequestError) -> GatewayResponse:
    """The answer that says why there is none."""
    return GatewayResponse(refusal.status, _encode_json(dialect.refusal(refusal)))


def dialect_at(path: str) -> Dialect | None:
    """The dialect of a path such as ``/v1/chat/completions``."""
    return next((each for each in DIALECTS if path == f"/v1{each.path}"), None)


def models_response(path: str) -> GatewayResponse | None:
    """The answer to ``GET /v1/models`` and to ``GET /v1/models/{id}``: there is one model."""
    entry = {"id": MODEL, "object": "model", "created": 0, "owned_by": "ajet"}
    if path == "/v1/models":
        return GatewayResponse(200, _encode_json({"object": "list", "data": [entry]}))
    return GatewayResponse(200, _encode_json(entry)) if path.startswith("/v1/models/") else None


def _parse_json_object(body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object")
    return value


def _encode_json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body).encode()
