"""The driver's side of the engines: start, sleep, wake, new weights, and the router's log.

    worker ──prompts, replies──> EngineProcess 0   an engine with weights of its own
      └─assign─> RouterProcess   EngineProcess 1 ──guard──> a vLLM or SGLang server

When the router dies, requests stay unanswered until the driver, which notices, begins another
attempt of the run. Not covered: placing the processes (`options`), what is said to a server
(ajet/servers).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from loguru import logger

from ajet.cluster.actor_errors import ProcessLost, result_of
from ajet.cluster.engine_process import MAX_CALLS
from ajet.cluster.import_env import ImportEnv
from ajet.cluster.router_process import ActorOptions, RouterHandle, RouterProcess
from ajet.core.bounded_loop import first_of
from ajet.core.config import AjetConfig
from ajet.core.inference.replica import ReplicaDown
from ajet.core.inference.routed_endpoint import RoutedEndpoint

if TYPE_CHECKING:
    from ajet.core.weight_sync.manifest import BroadcastSource, SyncReport, WeightSource
    from ajet.servers.serving import ServerSpec


def routed_endpoint(router: Any, max_tries: int) -> RoutedEndpoint:
    """An endpoint over the engines of this router, for this process."""
    return RoutedEndpoint(RouterHandle(router), max_tries=max_tries, mark=mark_of(os.getpid()))


def mark_of(pid: int) -> str:
    """What ends the ids of the requests that this process makes."""
    return f"~{pid}"


class Engines:
    """The driver's side."""

    def __init__(self, config: AjetConfig, options: Sequence[ActorOptions]) -> None:
        remote = ray.remote(RouterProcess).options(num_cpus=0, max_concurrency=MAX_CALLS)
        self._max_tries = config.ajet.rollout.router.max_tries
        self.router: Any = remote.remote(config, list(options), ImportEnv.of_this_process())

    async def start(self, server: ServerSpec | None = None) -> None:
        """In-process engines, or servers that begin so."""
        self.pids = await self._ask(self.router.start.remote(server))
        self._holds_memory = server is not None and not server.can_sleep

    async def sleep(self) -> None:
        """Memory is given back; requests are held."""
        if self._holds_memory:
            logger.info("vLLM on the CPU has no sleep mode: it keeps its memory during updates")
            self._holds_memory = False  # said
        await self._ask(self.router.sleep.remote())

    async def wake(self, source: WeightSource | BroadcastSource) -> SyncReport:
        """With the weights of `source`, whose checksum is that of what was sent."""
        return await self._ask(self.router.wake.remote(source, source.version))

    async def load(self, source: WeightSource | BroadcastSource) -> SyncReport:
        """New weights for engines that were awake and go on."""
        return await self._ask(self.router.load.remote(source, source.version))

    def endpoint_maker(self) -> Callable[[], RoutedEndpoint]:
        """What makes an endpoint over the engines, in the process where it is called."""
        return partial(routed_endpoint, self.router, self._max_tries)

    def forget(self, pid: int) -> None:
        """The process of this id is gone, and its requests with it."""
        self.router.forget.remote(mark_of(pid))

    async def supervised(self, work: Coroutine[Any, Any, None]) -> None:
        """Does the work while the router is there, whose log lines appear here."""
        await first_of(work, self._forward_log())

    async def _forward_log(self) -> None:
        """Ends with ProcessLost when the router is gone."""
        while True:
            level, text = await self._ask(self.router.news.remote())
            logger.log(level, text)

    def close(self) -> None:
        """The engines are the router's: they end with it."""
        ray.kill(self.router)

    @staticmethod
    async def _ask(call: Any) -> Any:
        try:
            return await result_of(call, "the router of the engines")
        except ReplicaDown as down:  # while it started: later ones are the router's to replace
            raise ProcessLost(str(down)) from down
