"""The engines of a run: the router's process, its handle in workers, and the driver's handle.

worker ──prompts, replies──> EngineProcess 0   an engine with a copy of the weights
  └─assign, done─> RouterProcess   EngineProcess 1 ──guard──> a vLLM or SGLang server
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from loguru import logger
from ray.exceptions import RayActorError

from ajet.cluster.actors import MAX_CALLS, ImportEnv, ProcessLost, result_of
from ajet.cluster.engine_process import COALESCE_S, ActorReplica, EngineProcess
from ajet.cluster.shared_images import SharedImages, drivers_node
from ajet.core.config import AjetConfig
from ajet.core.inference.replica import ReplicaDown
from ajet.core.inference.routed_endpoint import RoutedEndpoint
from ajet.core.inference.router import Assignment, RequestGivenUp
from ajet.core.process.bounded_loop import first_of
from ajet.core.process.descriptors import raise_descriptor_limit
from ajet.core.weight_sync.folder import FolderSource

if TYPE_CHECKING:
    from loguru import Message

    from ajet.core.weight_sync.manifest import BroadcastSource, SyncReport, WeightSource
    from ajet.servers.environment import ServerName
    from ajet.servers.serving import ServerSpec

ActorOptions = dict[str, Any]
PLACED_TIMEOUT_S = 300.0
"""How long Ray may take to start an engine's process. On a machine without free resources Ray would
wait forever, and `Router.sleep` with it."""


class RouterProcess:
    """The actor's class: a `Router` on the actor's event loop, and the engines' processes.

    Prompts and replies go directly between worker and engine; the router only chooses the engine.
    It replaces an engine whose process or server dies and loads the current weights into it."""

    def __init__(
        self,
        config: AjetConfig,
        options: Sequence[ActorOptions],
        import_env: ImportEnv,
        images: SharedImages | None = None,
    ) -> None:
        self._config, self._images = config, images
        self._import_env = import_env
        self._options = {
            f"engine {number}": actor_options for number, actor_options in enumerate(options)
        }
        self._actors: dict[str, Any] = {}
        self._unstarted: set[str] = set()  # engines that have a process and no model yet
        self._pids: dict[str, int] = {}
        self._log_messages: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._is_forwarding = False

    async def check(self, engine: ServerName, on_gpu: bool) -> None:
        """Starts the engines' processes; raises ConfigError if a machine lacks the server."""
        self._import_env.enter()
        for name in self._options.keys() - self._actors.keys():
            self._actors[name] = self._make_actor(name)
            self._unstarted.add(name)
        replicas = [ActorReplica(name, self._actors[name]) for name in self._unstarted]
        checks = (
            replica.result_of(self._actors[replica.name].check.remote(self._config, engine, on_gpu))
            for replica in replicas
        )
        await asyncio.gather(*checks)

    async def start(self, server: ServerSpec | None) -> list[int]:
        """Starts all engines, each with its model or its server; returns their process ids."""
        self._import_env.enter()
        raise_descriptor_limit()
        from ajet.core.inference.router import Router, RouterSettings

        self._server = server
        self._forward_log(asyncio.get_running_loop())
        replicas = await asyncio.gather(*map(self._spawn, self._options))
        self._router = Router(replicas, RouterSettings.from_config(self._config), spawn=self._spawn)
        return [self._pids[name] for name in self._options]

    async def _spawn(self, name: str) -> ActorReplica:
        if name in self._unstarted:
            self._unstarted.remove(name)
        else:
            if name in self._actors:  # it may live and hold GPUs that the next one needs
                ray.kill(self._actors[name])
            self._actors[name] = self._make_actor(name)
        actor = self._actors[name]
        replica = ActorReplica(name, actor)
        try:
            async with asyncio.timeout(PLACED_TIMEOUT_S):
                await replica.result_of(actor.is_there.remote())
        except TimeoutError:
            ray.kill(actor)  # it must not start later, in memory that the trainer then uses
            raise ReplicaDown(
                f"{name}: Ray has not started its process within {PLACED_TIMEOUT_S:g} s: its "
                "machine lacks free cores or GPUs (see `ray status`)"
            ) from None
        started = actor.start.remote(self._config, name, self._server, self._images)
        self._pids[name] = await replica.result_of(started)
        return replica

    def _make_actor(self, name: str) -> Any:
        remote = ray.remote(EngineProcess).options(
            **{"num_cpus": 0, "max_concurrency": MAX_CALLS} | self._options[name]
        )
        return remote.remote(self._import_env)

    async def assign(
        self, request_ids: Sequence[str], done: Sequence[str], departed: Sequence[str]
    ) -> list[Assignment | BaseException]:
        """Returns an assignment for each of these requests, or its error (`Router.assign`). The
        requests in `done` and the episodes in `departed` have ended."""
        for request_id in done:
            self._router.done(request_id)
        for episode_id in departed:
            self._router.leave(episode_id)
        calls = (self._router.assign(request_id) for request_id in request_ids)
        return await asyncio.gather(*calls, return_exceptions=True)

    async def engine(self, name: str) -> Any:
        return self._actors[name]

    async def report_down(self, assignment: Assignment, reason: str) -> None:
        self._router.report_down(assignment, reason)

    async def give_up(self, request_id: str) -> None:
        self._router.give_up(request_id)

    async def drop_requests(self, id_suffix: str) -> None:
        self._router.drop_requests(id_suffix)

    async def next_log_message(self) -> tuple[str, str]:
        """Waits for the next message logged here; returns its level and text."""
        return await self._log_messages.get()

    async def sleep(self) -> None:
        await self._router.pause()
        await self._router.sleep()

    async def wake(self, source: WeightSource | BroadcastSource, version: int) -> SyncReport:
        """Wakes the engines with these weights and resumes requests."""
        await self._router.wake()
        return await self._load_and_resume(source, version)

    async def load(self, source: WeightSource | BroadcastSource, version: int) -> SyncReport:
        """Loads weights while requests run: they are interrupted and continue from their tokens.
        After a WeightsError they are held until the next load, since a server may hold a mixture.
        """
        await self._router.pause(abort=True)
        return await self._load_and_resume(source, version)

    async def _load_and_resume(
        self, source: WeightSource | BroadcastSource, version: int
    ) -> SyncReport:
        is_whole = isinstance(source, FolderSource) and source.adapters is None
        if self._server is not None and is_whole and not self._config.has_several_adapters:
            # A replaced server must start from files that still exist: these are the newest. A base
            # to which adapters are added is kept instead.
            self._server = replace(self._server, weights=source)
        report = await self._router.load_weights(source, version)
        await self._router.resume()
        return report

    async def empty_caches(self) -> None:
        """Empties the engines' caches; running requests are interrupted and continue from their
        tokens."""
        await self._router.pause(abort=True)
        await self._router.empty_caches()
        await self._router.resume()

    async def close(self) -> None:
        await self._router.close()

    def _forward_log(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._is_forwarding:  # `start` is called again after it failed
            return
        self._is_forwarding = True

        def forward(message: Message) -> None:
            entry = (message.record["level"].name, message.record["message"])
            loop.call_soon_threadsafe(self._log_messages.put_nowait, entry)

        logger.add(forward, level="INFO")


class RouterHandle:
    """A `RequestRouter` that calls the router's process. Calls within `COALESCE_S` are sent
    together."""

    def __init__(self, router: Any) -> None:
        self._router = router
        self._replicas: dict[Assignment, ActorReplica] = {}
        self._unsent: dict[str, asyncio.Future[Assignment]] = {}
        self._waiting: dict[str, asyncio.Future[Assignment]] = {}
        self._done: list[str] = []
        self._left: list[str] = []
        self._sending: set[asyncio.Task[None]] = set()
        self._is_due = False

    async def assign(self, request_id: str) -> Assignment:
        """Returns `Router.assign`'s assignment. Never returns if the router has ended: the driver
        notices, and ends this process too."""
        future = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        self._unsent[request_id] = future
        self._send_soon()
        try:
            return await future
        finally:
            del self._waiting[request_id]

    def replica(self, assignment: Assignment) -> ActorReplica:
        return self._replicas[assignment]

    def done(self, request_id: str) -> None:
        self._done.append(request_id)
        self._send_soon()

    def leave(self, episode_id: str) -> None:
        self._left.append(episode_id)
        self._send_soon()

    def report_down(self, assignment: Assignment, reason: str) -> None:
        self._router.report_down.remote(assignment, reason)

    def give_up(self, request_id: str) -> None:
        if (future := self._waiting.get(request_id)) is not None and not future.done():
            future.set_exception(RequestGivenUp())
        self._router.give_up.remote(request_id)

    def _send_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            task = asyncio.create_task(self._send())
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self) -> None:
        await asyncio.sleep(COALESCE_S)
        self._is_due = False
        unsent, self._unsent = self._unsent, {}
        done, self._done = self._done, []
        departed, self._left = self._left, []
        call = self._router.assign.remote(list(unsent), done, departed)
        if not unsent:  # only news of ended requests and episodes: nobody waits for the answer
            return
        try:
            assigned = await call
            for assignment in assigned:
                if isinstance(assignment, Assignment) and assignment not in self._replicas:
                    actor = await self._router.engine.remote(assignment.name)
                    self._replicas[assignment] = ActorReplica(assignment.name, actor)
        except RayActorError:
            return
        for (request_id, future), result in zip(unsent.items(), assigned, strict=True):
            if future.done():  # its caller was cancelled or has given up
                if isinstance(result, Assignment):
                    self.done(request_id)
            elif isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)


def routed_endpoint(router: Any, max_tries: int) -> RoutedEndpoint:
    """Makes an endpoint over the engines of this router, for this process."""
    suffix = request_id_suffix(os.getpid())
    return RoutedEndpoint(RouterHandle(router), max_tries=max_tries, id_suffix=suffix)


def request_id_suffix(pid: int) -> str:
    """Returns the suffix of the request ids of this process."""
    return f"~{pid}"


class Engines:
    """The driver's handle of the engines and their router. When the router dies, requests get no
    answer; the driver notices it and begins another attempt of the run."""

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

        async def forward_log() -> None:
            while True:  # until the router ends, which raises ProcessLost
                level, text = await self._call(self.router.next_log_message.remote())
                logger.log(level, text)

        await first_of(work, forward_log())

    def close(self) -> None:
        """Ends the router, and with it the engines: Ray ends an actor with its owner."""
        ray.kill(self.router)

    @staticmethod
    async def _call(call: Any) -> Any:
        try:
            return await result_of(call, "the router of the engines")
        except ReplicaDown as down:  # at the start; later the router replaces a lost engine
            raise ProcessLost(str(down)) from down
