"""Engines in processes of their own, and one router in front of them that all workers ask.

    worker ──┐                  ┌─> EngineProcess 0   an engine with weights of its own
    worker ──┼─> RouterProcess ─┤
    worker ──┘    (Router)      └─> EngineProcess 1 ──leash──> a vLLM or SGLang server

`Engines` is the driver's hand on all of it: start, sleep, wake, new weights, and what the router
has to say. An engine whose process or server dies is replaced by the router with the weights of the
day; when the router dies, requests stay unanswered until the driver, which hears of it, begins
another sitting. A server is on the machine and the GPUs of its engine's process, and ends with it;
its log is in the run folder.

Not covered: placing the processes (`options`), what is said to a server (core/inference/engines).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray
from loguru import logger
from ray.exceptions import RayActorError, RayTaskError

from ajet.cluster.lost import ProcessLost, answer
from ajet.cluster.user_code import Surroundings
from ajet.core.bounded_loop import first_of
from ajet.core.config import AjetConfig
from ajet.core.inference.endpoint import Completion, SamplingParams
from ajet.core.inference.replica import ReplicaDown
from ajet.core.record.run_folder import RunFolder
from ajet.core.weight_sync.folder import FolderSource

if TYPE_CHECKING:
    from loguru import Message

    from ajet.core.inference.replica import Replica
    from ajet.core.inference.serving import ServerStart
    from ajet.core.weight_sync.manifest import Delivery, SyncReport, WeightSource

MAX_CALLS = 10_000
ActorOptions = dict[str, Any]


class EngineProcess:
    """Lives in an actor: an in-process replica behind Ray, or the client of a server of its own."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings

    async def start(self, config: AjetConfig, name: str, server: ServerStart | None) -> int:
        """Loads the model, here or in a server; returns this process's id."""
        self._surroundings.enter()
        from ajet.core import assembly
        from ajet.core.inference.serving import start_server

        if server is None:
            assembly.set_threads(config)
            self._replica: Replica = assembly.make_replica(config, name)
        else:
            log = RunFolder(config.run_folder).logs / f"{name.replace(' ', '_')}.log"
            self._replica = await start_server(config, server, name=name, log_path=log)
        return os.getpid()

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        return await self._replica.generate(prompt_ids, sampling, request_id)

    async def health(self) -> None:
        await self._replica.health()

    async def pause(self, abort: bool) -> None:
        await self._replica.pause(abort)

    async def resume(self) -> None:
        await self._replica.resume()

    async def sleep(self) -> None:
        await self._replica.sleep()

    async def wake(self) -> None:
        await self._replica.wake()

    async def load_weights(self, source: WeightSource, version: int) -> SyncReport:
        return await self._replica.load_weights(source, version)

    async def abort(self, request_id: str) -> None:
        if (tell := getattr(self._replica, "abort", None)) is not None:
            tell(request_id)

    async def leave(self, episode_id: str) -> None:
        if (tell := getattr(self._replica, "leave", None)) is not None:
            tell(episode_id)

    async def close(self) -> None:
        await self._replica.close()


class ActorReplica:
    """A `Replica` whose engine lives in an actor."""

    def __init__(self, name: str, actor: Any) -> None:
        self.name = name
        self._actor = actor

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        return await self.answer(self._actor.generate.remote(prompt_ids, sampling, request_id))

    async def health(self) -> None:
        await self.answer(self._actor.health.remote())

    async def pause(self, abort: bool = False) -> None:
        await self.answer(self._actor.pause.remote(abort))

    async def resume(self) -> None:
        await self.answer(self._actor.resume.remote())

    async def sleep(self) -> None:
        await self.answer(self._actor.sleep.remote())

    async def wake(self) -> None:
        await self.answer(self._actor.wake.remote())

    async def load_weights(self, source: WeightSource, version: int) -> SyncReport:
        return await self.answer(self._actor.load_weights.remote(source, version))

    def abort(self, request_id: str) -> None:
        self._actor.abort.remote(request_id)

    def leave(self, episode_id: str) -> None:
        self._actor.leave.remote(episode_id)

    async def close(self) -> None:
        ray.kill(self._actor)

    async def answer(self, call: Any) -> Any:
        """What its process says; ReplicaDown where that is gone."""
        try:
            return await call
        except RayActorError as error:
            raise ReplicaDown(f"{self.name}: its process ended") from error
        except RayTaskError as error:
            raise error.cause from None


class RouterProcess:
    """Lives in an actor, whose loop is the router's."""

    def __init__(
        self, config: AjetConfig, options: Sequence[ActorOptions], surroundings: Surroundings
    ) -> None:
        self._config = config
        self._surroundings = surroundings
        self._options = {f"engine {number}": each for number, each in enumerate(options)}
        self._actors: dict[str, Any] = {}
        self._pids: dict[str, int] = {}
        self._news: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._is_heard = False

    async def start(self, server: ServerStart | None) -> list[int]:
        """All engines, each with its model, or its server; the ids of their processes."""
        self._surroundings.enter()
        from ajet.core.inference.router import Router
        from ajet.core.inference.serving import router_settings

        self._server = server
        self._hear(asyncio.get_running_loop())
        replicas = await asyncio.gather(*map(self._spawn, self._options))
        self._router = Router(replicas, router_settings(self._config), spawn=self._spawn)
        return [self._pids[name] for name in self._options]

    async def _spawn(self, name: str) -> ActorReplica:
        if name in self._actors:  # it may live, and hold the place of the next one
            ray.kill(self._actors[name])
        remote = ray.remote(EngineProcess).options(
            **{"num_cpus": 0, "max_concurrency": MAX_CALLS} | self._options[name]
        )
        actor: Any = remote.remote(self._surroundings)
        self._actors[name] = actor
        replica = ActorReplica(name, actor)
        started = actor.start.remote(self._config, name, self._server)
        self._pids[name] = await replica.answer(started)
        return replica

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        return await self._router.generate(prompt_ids, sampling, request_id)

    async def news(self) -> tuple[str, str]:
        """The level and the text of what was logged here; waits for it."""
        return await self._news.get()

    async def leave(self, episode_id: str) -> None:
        self._router.leave(episode_id)

    async def abort(self, request_id: str) -> None:
        self._router.abort(request_id)

    async def sleep(self) -> None:
        await self._router.pause()
        await self._router.sleep()

    async def wake(self, source: WeightSource | Delivery, version: int) -> SyncReport:
        """With these weights; requests go on."""
        await self._router.wake()
        return await self._loaded(source, version)

    async def load(self, source: WeightSource | Delivery, version: int) -> SyncReport:
        """While requests are under way: they are held, and go on from their tokens."""
        await self._router.pause(abort=True)
        return await self._loaded(source, version)

    async def _loaded(self, source: WeightSource | Delivery, version: int) -> SyncReport:
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


class RouterEndpoint:
    """A `ModelEndpoint` in a worker: the router's. Requests carry the process's id: one that a
    worker left behind when it died must not be in the way when its episode begins again."""

    def __init__(self, router: Any) -> None:
        self._router = router
        self._mark = f"~{os.getpid()}"

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        marked = request_id + self._mark
        try:
            return await self._router.generate.remote(prompt_ids, sampling, marked)
        except asyncio.CancelledError:
            self._router.abort.remote(marked)
            raise
        except RayActorError:  # the driver hears of it, and ends this process too
            return await asyncio.Future()
        except RayTaskError as error:
            raise error.cause from None

    def leave(self, episode_id: str) -> None:
        """The schedule says that the episode is over."""
        self._router.leave.remote(episode_id)


class Engines:
    """The driver's side."""

    def __init__(self, config: AjetConfig, options: Sequence[ActorOptions]) -> None:
        remote = ray.remote(RouterProcess).options(num_cpus=0, max_concurrency=MAX_CALLS)
        self.router: Any = remote.remote(config, list(options), Surroundings.of_this_process())

    async def start(self, server: ServerStart | None = None) -> None:
        """In-process engines, or servers that begin so."""
        self.pids = await self._ask(self.router.start.remote(server))
        self._holds_memory = server is not None and not server.can_sleep

    async def sleep(self) -> None:
        """Memory is given back; requests are held."""
        if self._holds_memory:
            logger.info("vLLM on the CPU has no sleep mode: it keeps its memory during updates")
            self._holds_memory = False  # said
        await self._ask(self.router.sleep.remote())

    async def wake(self, source: WeightSource | Delivery) -> SyncReport:
        """With the weights of `source`, whose checksum is that of what was sent."""
        return await self._ask(self.router.wake.remote(source, source.version))

    async def load(self, source: WeightSource | Delivery) -> SyncReport:
        """New weights for engines that were awake and go on."""
        return await self._ask(self.router.load.remote(source, source.version))

    async def attended(self, work: Coroutine[Any, Any, None]) -> None:
        """Does the work while the router is there; what it says is logged here."""
        await first_of(work, self._tell_news())

    async def _tell_news(self) -> None:
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
            return await answer(call, "the router of the engines")
        except ReplicaDown as down:  # while it started: later ones are the router's to replace
            raise ProcessLost(str(down)) from down
