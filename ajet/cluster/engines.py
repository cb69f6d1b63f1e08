"""The driver's handle of the engines: start, sleep, wake, load weights, and the router's log.

    worker ──prompts, replies──> EngineProcess 0   an engine with a copy of the weights
      └─assign─> RouterProcess   EngineProcess 1 ──guard──> a vLLM or SGLang server

When the router dies, requests get no answer; the driver notices it and begins another attempt of
the run.
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
from ajet.cluster.shared_images import SharedImages, drivers_node
from ajet.core.config import AjetConfig
from ajet.core.inference.replica import ReplicaDown
from ajet.core.inference.routed_endpoint import RoutedEndpoint
from ajet.core.process.bounded_loop import first_of

if TYPE_CHECKING:
    from ajet.core.weight_sync.manifest import BroadcastSource, SyncReport, WeightSource
    from ajet.servers.environment import ServerName
    from ajet.servers.serving import ServerSpec


def routed_endpoint(router: Any, max_tries: int) -> RoutedEndpoint:
    """Makes an endpoint over the engines of this router, for this process."""
    suffix = request_id_suffix(os.getpid())
    return RoutedEndpoint(RouterHandle(router), max_tries=max_tries, id_suffix=suffix)


def request_id_suffix(pid: int) -> str:
    """Returns the suffix of the request ids of this process."""
    return f"~{pid}"


class Engines:
    """The driver's handle of the engines and their router."""

    def __init__(
        self,
        config: AjetConfig,
        options: Sequence[ActorOptions],
        images: SharedImages | None,
    ) -> None:
        # Wherever the engines are, so that no lost node takes it along.
        remote = ray.remote(RouterProcess).options(
            num_cpus=0, max_concurrency=MAX_CALLS, scheduling_strategy=drivers_node()
        )
        self._max_tries = config.ajet.rollout.router.max_tries
        self.router: Any = remote.remote(config, list(options), ImportEnv.current(), images)

    async def check(self, engine: ServerName, on_gpu: bool) -> None:
        """Raises ConfigError if the machine of an engine lacks this server."""
        await self._call(self.router.check.remote(engine, on_gpu))

    async def start(self, server: ServerSpec | None = None) -> None:
        """Starts in-process engines, or servers that start as `server` says."""
        self.pids = await self._call(self.router.start.remote(server))
        self._warns_on_sleep = server is not None and not server.can_sleep

    async def sleep(self) -> None:
        """Makes the engines free their memory; requests are held."""
        if self._warns_on_sleep:
            logger.info("vLLM on the CPU has no sleep mode: it keeps its memory during updates")
            self._warns_on_sleep = False
        await self._call(self.router.sleep.remote())

    async def wake(self, source: WeightSource | BroadcastSource) -> SyncReport:
        """Wakes the engines with the weights of `source`; the report has the checksum of what was
        sent."""
        return await self._call(self.router.wake.remote(source, source.version))

    async def load(self, source: WeightSource | BroadcastSource) -> SyncReport:
        """Loads new weights into engines that are awake and keep their requests."""
        return await self._call(self.router.load.remote(source, source.version))

    async def empty_caches(self) -> None:
        await self._call(self.router.empty_caches.remote())

    def endpoint_factory(self) -> Callable[[], RoutedEndpoint]:
        """Returns a picklable function that makes an endpoint over the engines."""
        return partial(routed_endpoint, self.router, self._max_tries)

    def drop_requests(self, pid: int) -> None:
        """Tells the router that this process has ended, and its requests with it."""
        self.router.drop_requests.remote(request_id_suffix(pid))

    async def supervised(self, work: Coroutine[Any, Any, None]) -> None:
        """Awaits the work and logs the router's messages; fails if the router ends first."""
        await first_of(work, self._forward_log())

    async def _forward_log(self) -> None:
        """Logs the router's messages until it ends; then raises ProcessLost."""
        while True:
            level, text = await self._call(self.router.next_log_message.remote())
            logger.log(level, text)

    def close(self) -> None:
        """Ends the router, and with it the engines: Ray ends an actor with its owner."""
        ray.kill(self.router)

    @staticmethod
    async def _call(call: Any) -> Any:
        try:
            return await result_of(call, "the router of the engines")
        except ReplicaDown as down:  # at the start; later the router replaces a lost engine
            raise ProcessLost(str(down)) from down
