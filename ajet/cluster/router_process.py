"""The router of a run's engines in a process of its own, and how workers ask it.

    worker ──assign, done──> RouterProcess   (Router, with the engines' health and weights)
       └────prompt, reply──> EngineProcess

`RouterHandle` is the worker's side: with a `RoutedEndpoint` over it, prompts and replies go from
worker to engine and back; the router only says which engine. An engine whose process or server dies
is replaced here, with the present weights.

Not covered: what an engine is (engine_process.py), the driver's side (engines.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray
from loguru import logger
from ray.exceptions import RayActorError

from ajet.cluster.engine_process import COALESCE_S, MAX_CALLS, ActorReplica, EngineProcess
from ajet.cluster.import_env import ImportEnv
from ajet.core.config import AjetConfig
from ajet.core.inference.router import Assignment, RequestGivenUp
from ajet.core.weight_sync.folder import FolderSource

if TYPE_CHECKING:
    from loguru import Message

    from ajet.core.weight_sync.manifest import BroadcastSource, SyncReport, WeightSource
    from ajet.servers.serving import ServerSpec

ActorOptions = dict[str, Any]


class RouterProcess:
    """Lives in an actor, whose loop is the router's."""

    def __init__(
        self, config: AjetConfig, options: Sequence[ActorOptions], import_env: ImportEnv
    ) -> None:
        self._config = config
        self._import_env = import_env
        self._options = {f"engine {number}": each for number, each in enumerate(options)}
        self._actors: dict[str, Any] = {}
        self._pids: dict[str, int] = {}
        self._news: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._is_heard = False

    async def start(self, server: ServerSpec | None) -> list[int]:
        """All engines, each with its model, or its server; the ids of their processes."""
        self._import_env.enter()
        from ajet.core.inference.router import Router, RouterSettings

        self._server = server
        self._hear(asyncio.get_running_loop())
        replicas = await asyncio.gather(*map(self._spawn, self._options))
        self._router = Router(replicas, RouterSettings.from_config(self._config), spawn=self._spawn)
        return [self._pids[name] for name in self._options]

    async def _spawn(self, name: str) -> ActorReplica:
        if name in self._actors:  # it may live, and hold the place of the next one
            ray.kill(self._actors[name])
        remote = ray.remote(EngineProcess).options(
            **{"num_cpus": 0, "max_concurrency": MAX_CALLS} | self._options[name]
        )
        actor: Any = remote.remote(self._import_env)
        self._actors[name] = actor
        replica = ActorReplica(name, actor)
        started = actor.start.remote(self._config, name, self._server)
        self._pids[name] = await replica.answer(started)
        return replica

    async def assign(
        self, request_ids: Sequence[str], done: Sequence[str], left: Sequence[str]
    ) -> list[Assignment | BaseException]:
        """An assignment for each of these requests, or its error (`Router.assign`). The requests of
        `done` are over, and so are the episodes of `left`."""
        for request_id in done:
            self._router.done(request_id)
        for episode_id in left:
            self._router.leave(episode_id)
        asked = (self._router.assign(request_id) for request_id in request_ids)
        return await asyncio.gather(*asked, return_exceptions=True)

    async def engine(self, name: str) -> Any:
        """The actor that has this name now."""
        return self._actors[name]

    async def report_down(self, assignment: Assignment, reason: str) -> None:
        self._router.report_down(assignment, reason)

    async def give_up(self, request_id: str) -> None:
        self._router.give_up(request_id)

    async def forget(self, mark: str) -> None:
        """See `Router.forget`."""
        self._router.forget(mark)

    async def news(self) -> tuple[str, str]:
        """The level and the text of what was logged here; waits for it."""
        return await self._news.get()

    async def sleep(self) -> None:
        await self._router.pause()
        await self._router.sleep()

    async def wake(self, source: WeightSource | BroadcastSource, version: int) -> SyncReport:
        """With these weights; requests go on."""
        await self._router.wake()
        return await self._loaded(source, version)

    async def load(self, source: WeightSource | BroadcastSource, version: int) -> SyncReport:
        """While requests are under way: they are held, and go on from their tokens."""
        await self._router.pause(abort=True)
        return await self._loaded(source, version)

    async def _loaded(self, source: WeightSource | BroadcastSource, version: int) -> SyncReport:
        if self._server is not None and isinstance(source, FolderSource):
            self._server = replace(self._server, weights=source)  # older ones may be removed now
        report = await self._router.load_weights(source, version)
        await self._router.resume()
        return report

    async def close(self) -> None:
        await self._router.close()

    def _hear(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._is_heard:  # a start that failed may be tried again
            return
        self._is_heard = True

        def tell(message: Message) -> None:
            told = (message.record["level"].name, message.record["message"])
            loop.call_soon_threadsafe(self._news.put_nowait, told)

        logger.add(tell, level="INFO")


class RouterHandle:
    """The router as an endpoint in another process asks it (`RequestRouter`). What an endpoint has
    to say within `COALESCE_S` travels in one call."""

    def __init__(self, router: Any) -> None:
        self._router = router
        self._replicas: dict[Assignment, ActorReplica] = {}
        self._asking: dict[str, asyncio.Future[Assignment]] = {}  # not sent yet
        self._waiting: dict[str, asyncio.Future[Assignment]] = {}
        self._done: list[str] = []
        self._left: list[str] = []
        self._sending: set[asyncio.Task[None]] = set()
        self._is_due = False

    async def assign(self, request_id: str) -> Assignment:
        """See `Router.assign`. Never returns where the router is gone: the driver notices, and ends
        this process too."""
        future = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        self._asking[request_id] = future
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
        asking, self._asking = self._asking, {}
        done, self._done = self._done, []
        left, self._left = self._left, []
        call = self._router.assign.remote(list(asking), done, left)
        if not asking:
            return
        try:
            assigned = await call
            await self._know(assigned)
        except RayActorError:
            return
        for (request_id, future), found in zip(asking.items(), assigned, strict=True):
            if future.done():  # its caller was cancelled, or has given it up
                if isinstance(found, Assignment):
                    self.done(request_id)
            elif isinstance(found, BaseException):
                future.set_exception(found)
            else:
                future.set_result(found)

    async def _know(self, assigned: Sequence[Assignment | BaseException]) -> None:
        """The actors of these engines, as far as they are new here."""
        for each in assigned:
            if isinstance(each, Assignment) and each not in self._replicas:
                actor = await self._router.engine.remote(each.name)
                self._replicas[each] = ActorReplica(each.name, actor)
