"""The gateway of a run whose episodes clients own: the model's API and the exchange's on one port.

Each call of the model is a sign of life of its episode's client. Not covered: TLS; on an address
other than loopback the keys travel as they are, so put a proxy or a tunnel before it.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from ajet.core.workflow.gateway.gateway import HOST, Gateway, GatewayResponse
from ajet.core.workflow.registry import WorkflowFactory
from ajet.exchange.journal import AcknowledgingJournal
from ajet.exchange.workflow import ClientOwned

if TYPE_CHECKING:
    from ajet.core.rollout.request import EpisodeJournal
    from ajet.core.workflow.gateway.dialects import Dialect
    from ajet.core.workflow.gateway.keys import Grant
    from ajet.core.workflow.gateway.server import GatewayServer
    from ajet.exchange.exchange import EpisodeExchange

PORT_KEY = "ajet.serve.port"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class ExchangeGateway(Gateway):
    """Serves the model to agents and the exchange to clients that have the server's key."""

    def __init__(
        self, exchange: EpisodeExchange, key: str, host: str = HOST, port: int | None = None
    ) -> None:
        """`port=None` means any free port."""
        super().__init__(port)
        self.exchange, self.host = exchange, host
        self._key = key

    @property
    def is_on_loopback(self) -> bool:
        """Returns whether only this machine reaches the server."""
        return self.host in LOOPBACK

    def make_server(self) -> GatewayServer:
        """Makes the HTTP server with the routes of both."""
        from ajet.core.workflow.gateway.server import GatewayServer, make_app
        from ajet.exchange.routes import add_routes

        app = make_app(self)
        add_routes(app, self)
        return GatewayServer(app, self.host, self.port, PORT_KEY)

    @property
    def workflows(self) -> WorkflowFactory:
        """Returns the factory of episodes that are offered to clients; tasks that name an agent
        have that one."""
        return WorkflowFactory(ClientOwned.of(self.exchange))

    def acknowledging(self, journal: EpisodeJournal | None) -> AcknowledgingJournal:
        """Returns a journal that tells clients of the episodes that this one has stored."""
        return AcknowledgingJournal(self.exchange, journal)

    def is_server_key(self, key: str) -> bool:
        return secrets.compare_digest(key.encode("utf-8", "surrogateescape"), self._key.encode())

    async def respond(self, dialect: Dialect, grant: Grant, body: bytes) -> GatewayResponse:
        """Answers a call of the model, and notes that the client lives."""
        with self.exchange.calling(grant.recorder.episode_id):
            return await super().respond(dialect, grant, body)

    async def check_loop_responds(self, loop: asyncio.AbstractEventLoop, grant: Grant) -> None:
        """Lets a client's call wait while the run's event loop is blocked: its workflow waits
        without blocking, so a judge or the run itself does, and ends."""
        if loop.is_closed() or not self.exchange.is_claimed(grant.recorder.episode_id):
            await super().check_loop_responds(loop, grant)

    def close(self) -> None:
        self.exchange.close("the run has ended")
        super().close()
