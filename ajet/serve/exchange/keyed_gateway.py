"""A gateway that others reach over the network, with a key for the server and routes beyond the
model's. There is no TLS: on an address other than loopback put a proxy or a tunnel in front,
because keys travel in plain text.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from ajet.core.net.address import LOOPBACK_NAMES
from ajet.core.workflow.gateway.gateway import HOST, Gateway

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ajet.core.workflow.gateway.server import GatewayServer

PORT_KEY = "ajet.serve.port"


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
