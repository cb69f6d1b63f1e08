"""Runs clients' episodes in the driver, instead of in rollout workers.

    client ──HTTP──> gateway, exchange ─┐
                                        ├─ the driver ──assign──> router
    GroupRunner ──plans──> episodes ────┘       └──prompt, reply──> engines

Such an episode only waits for its client, so one process holds a thousand of them. The exchange and
the gateway listen on one port, for all attempts of the run. The judge runs here too.
"""

from __future__ import annotations

from collections.abc import Callable

from ajet import assembly
from ajet.cluster.rollout_worker import TokenizerSpec
from ajet.core.config import AjetConfig
from ajet.core.inference.endpoint import ModelEndpoint
from ajet.core.judge import make_judge
from ajet.core.rollout.group import GroupRunner
from ajet.exchange.gateway import ExchangeGateway


class DriverRollout:
    """A stand-in for `RolloutWorkers`, with the methods that an attempt calls."""

    def __init__(self, config: AjetConfig, gateway: ExchangeGateway) -> None:
        self._config, self._gateway = config, gateway
        self._judge = make_judge(config)

    async def check(self) -> None:
        """Does nothing: the driver has imported the user's code."""

    async def start(
        self, make_endpoint: Callable[[], ModelEndpoint], spec: TokenizerSpec
    ) -> GroupRunner:
        """Tells the exchange that an attempt begins; returns a runner of groups."""
        self._gateway.exchange.begin_attempt()
        return assembly.make_runner(
            self._config,
            make_endpoint(),
            spec.template(),
            judge=self._judge,
            gateway=self._gateway,
            workflows=self._gateway.workflows,
        )

    def close(self) -> None:
        """Does nothing: the command that made the gateway closes it, after the last attempt."""
