"""The HTTP server of `ajet serve --tinker`: routes below /api/v1, on the gateway's server. Errors
are {"error", "category"} with status 400, 401, 403, 404 or 413. Any key is accepted unless
AJET_SERVE_API_KEY is set, which a server on an address other than loopback needs.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from ajet import assembly
from ajet.core.config import AjetConfig
from ajet.core.errors import AjetError, KeysConflict
from ajet.core.net.address import LOOPBACK_NAMES, fixed_port
from ajet.core.record.run_folder import RunFolder
from ajet.core.workflow.gateway.gateway import parse_json_object
from ajet.core.workflow.gateway.request import RequestError
from ajet.core.workflow.gateway.server import GatewayServer, body_of, key_of
from ajet.serve.exchange.keyed_gateway import PORT_KEY, check_origin
from ajet.serve.tinker.journal import Journal
from ajet.serve.tinker.samplers import load_base, make_samplers, start_samplers
from ajet.serve.tinker.service import TinkerService
from ajet.serve.tinker.store import RunInputs, Store
from ajet.serve.tinker.wire import PROTOBUF, schema

PREFIX = "/api/v1"
JSON = "application/json"


def make_service(config: AjetConfig, folder: RunFolder, *, on_ray: bool = False) -> TinkerService:
    """Loads the model and makes the service; checkpoints go below the run folder. With `on_ray`,
    which must be connected, other processes sample."""
    schema()  # says now that the SDK's package is missing
    assembly.prepare_torch(config)
    base, template = load_base(config)
    tokenizer = folder.path / "tokenizer"
    template.tokenizer.save_pretrained(str(tokenizer))
    samplers = start_samplers(config) if on_ray else make_samplers(config, base, template)
    inputs = RunInputs(config, template.stop_token_ids, tokenizer, template.text_of)
    store = Store(folder.path / "tinker", inputs)
    # A server of another base leaves this one's sessions alone.
    base_hash = hashlib.sha256(base.name.encode()).hexdigest()[:16]
    journal = Journal(store.root / f"journal-{base_hash}.sqlite")
    service = TinkerService(base, samplers, store, journal, tokenizer, config.ajet.seed)
    service.restore()
    return service


def start_server(service: TinkerService, config: AjetConfig, key: str | None) -> GatewayServer:
    """Starts the server in a thread, and returns it; `key` None accepts any."""
    host, port = config.ajet.serve.host, config.ajet.serve.port
    if key is None and host not in LOOPBACK_NAMES:
        raise KeysConflict(
            f"ajet serve --tinker: ajet.serve.host: {host} is reached from other machines: set "
            "AJET_SERVE_API_KEY, which clients then give as TINKER_API_KEY"
        )
    app = make_app(service, key, on_loopback=host in LOOPBACK_NAMES)
    return GatewayServer(app, host, fixed_port(port), PORT_KEY, lifespan="on")


def make_app(service: TinkerService, key: str | None, *, on_loopback: bool) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.resume()
        yield
        await service.close()

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan)
    store = service.store

    def add(method: str, path: str, handle: Callable[[Request], Any]) -> None:
        async def endpoint(request: Request) -> Response:
            try:
                check_origin(request, on_loopback=on_loopback)
                if key is not None and not secrets.compare_digest(
                    key_of(request).encode(), key.encode()
                ):
                    raise RequestError(
                        "unknown key: TINKER_API_KEY must be the AJET_SERVE_API_KEY of this server",
                        status=401,
                    )
                value = handle(request)
                value = await value if isawaitable(value) else value
            except RequestError as error:
                return _error(error.status, str(error))
            except AjetError as error:
                return _error(400, str(error))
            return value if isinstance(value, Response) else _json(200, value)

        app.add_route(PREFIX + path, endpoint, methods=[method])

    async def post(request: Request) -> Any:
        if request.headers.get("content-encoding"):
            raise RequestError(
                "compressed bodies are not served; client/config does not ask for one"
            )
        path = request.url.path.removeprefix(f"{PREFIX}/")
        return service.post(path, await body_of(request))

    async def retrieve(request: Request) -> Response:
        answer = await service.retrieve(parse_json_object(await body_of(request)))
        if answer is None:
            return _json(408, {"type": "try_again", "queue_state": "active"})
        return Response(answer.body, media_type=PROTOBUF if answer.is_message else JSON)

    def finish(request: Request) -> Any:
        service.finish_session(_name(request))
        return {}

    def delete(request: Request) -> Any:
        names = request.path_params
        store.delete(f"tinker://{names['name']}/{names['section']}/{names['checkpoint']}")
        return {}

    for path in (*service.posts, "forward_backward"):
        add("POST", f"/{path}", post)
    add("POST", "/retrieve_future", retrieve)
    add("POST", "/sessions/{name}/finish", finish)
    add("DELETE", "/training_runs/{name}/checkpoints/{section}/{checkpoint}", delete)
    reads: Mapping[str, Callable[[Request], Any]] = {
        "/healthz": lambda r: {"status": "ok"},
        "/get_server_capabilities": lambda r: service.capabilities(),
        "/sessions/{name}": lambda r: service.session(_name(r)),
        "/samplers/{name}": lambda r: service.sampler(_name(r)),
        "/training_runs": lambda r: store.runs(*_page(r)),
        "/training_runs/{name}": lambda r: store.run(_name(r)),
        "/training_runs/{name}/checkpoints": lambda r: {"checkpoints": store.checkpoints(_name(r))},
        "/checkpoints": lambda r: store.all_checkpoints(*_page(r)),
    }
    for path, read in reads.items():
        add("GET", path, read)
    app.add_exception_handler(HTTPException, _not_served)
    return app


def _name(request: Request) -> str:
    return request.path_params["name"]


def _page(request: Request) -> tuple[int, int]:
    query = request.query_params
    try:
        return int(query.get("limit", 20)), int(query.get("offset", 0))
    except ValueError:
        raise RequestError("limit and offset must be numbers") from None


def _json(status: int, value: Any) -> Response:
    return Response(json.dumps(value), status, media_type=JSON)


def _error(status: int, message: str) -> Response:
    return _json(status, {"error": message, "category": "user"})


async def _not_served(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return _error(status, f"{request.method} {request.url.path} is not served by ajet")
