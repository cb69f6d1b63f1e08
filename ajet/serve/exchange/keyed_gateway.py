"""A gateway that others reach over the network, with a key for the server and routes beyond the
model's. There is no TLS: on an address other than loopback put a proxy or a tunnel in front,
because keys travel in plain text.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from ajet.core.net.address import LOOPBACK_NAMES, is_loopback_host, is_loopback_origin
from ajet.core.text.plain_value import plain_text
from ajet.core.workflow.gateway.gateway import HOST, Gateway
from ajet.core.workflow.gateway.request import RequestError

if TYPE_CHECKING:
    from fastapi import FastAPI, Request

    from ajet.core.workflow.gateway.server import GatewayServer

PORT_KEY = "ajet.serve.port"
MAX_HOST_LENGTH = 200


class KeyedGateway(Gateway):
    """Serves the model, and the routes that a subclass adds, to whoever has the server's key."""

    def __init__(self, key: str, host: str = HOST, port: int | None = None) -> None:
        """Listens on `host`, loopback or not; `port=None` means any free port."""
        super().__init__(port)
        self.host = host
        self._key = key

    @property
    def is_on_loopback(self) -> bool:
        return self.host in LOOPBACK_NAMES

    def is_server_key(self, key: str) -> bool:
        """Compares a key with the server's, in constant time."""
        return secrets.compare_digest(key.encode("utf-8", "surrogateescape"), self._key.encode())

    def add_routes(self, app: FastAPI) -> None:
        """Adds the server's routes to the app that has the model's."""
        raise NotImplementedError

    def make_server(self) -> GatewayServer:
        from ajet.core.workflow.gateway.server import GatewayServer, make_app

        app = make_app(self)
        self.add_routes(app)
        return GatewayServer(app, self.host, self.port, PORT_KEY)


def check_origin(request: Request, *, on_loopback: bool) -> None:
    """Refuses pages of web sites; on loopback also host names that merely point at this machine."""
    origin = request.headers.get("origin")
    if origin is not None and not is_loopback_origin(origin):
        raise RequestError("requests from web sites are refused", status=403, code="origin")
    names = request.headers.getlist("host") or [""]
    name = next((name for name in names if not is_loopback_host(name)), None)
    if on_loopback and name is not None:
        raise RequestError(
            f"the host {plain_text(name, MAX_HOST_LENGTH)!r} is not this machine: use 127.0.0.1",
            status=403,
            code="host",
        )
