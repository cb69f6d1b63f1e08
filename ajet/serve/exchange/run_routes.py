"""The HTTP API of a server whose clients configure it, below /ajet/v1 (docs/episodes_over_http.md).

POST run        {"config": …}: starts a run of this config, a YAML as text or as an object
POST run/stop   {"now": false}: stops the run, after its step or at once
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import yaml
from fastapi import FastAPI, Request

from ajet.core.workflow.gateway.request import Fields, RequestError
from ajet.serve.exchange.routes import PREFIX, endpoint

if TYPE_CHECKING:
    from ajet.serve.exchange.gateway import SwarmGateway


def yaml_of(value: str | dict[str, Any]) -> str:
    """Returns the text of a config. Raises `RequestError` for one that is no text of a file."""
    try:
        text = value if isinstance(value, str) else yaml.safe_dump(value, sort_keys=False)
        text.encode()
    except (RecursionError, UnicodeEncodeError) as error:
        raise RequestError(f"config: {type(error).__name__}", param="config") from error
    return text


def add_run_routes(app: FastAPI, gateway: SwarmGateway) -> None:
    async def start(request: Request, fields: Fields) -> tuple[int, dict[str, Any]]:
        value = fields.take("config", (str, dict))
        fields.refuse_rest()
        if value is None:
            raise RequestError("config is missing: the YAML of the run", param="config")
        notices = await asyncio.to_thread(lambda: gateway.runs.start(yaml_of(value)))
        return 202, {**gateway.status(), "notices": list(notices)}

    async def stop(request: Request, fields: Fields) -> tuple[int, dict[str, Any]]:
        now = fields.take("now", bool, False)
        fields.refuse_rest()
        gateway.runs.stop(now=now)
        return 200, gateway.status()

    for path, handler in (("/run", start), ("/run/stop", stop)):
        app.add_route(PREFIX + path, endpoint(gateway, handler), methods=["POST"])
