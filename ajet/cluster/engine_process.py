"""One engine in a separate process, and the replica through which other processes call it. A server
uses the machine and the GPUs of its engine's process, and ends with it; its log is in the run
folder.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from ajet.cluster.actors import ImportEnv
from ajet.cluster.nodes import use_interface_of
from ajet.cluster.shared_images import SharedImages
from ajet.core.config import AjetConfig
from ajet.core.inference.endpoint import Completion, SamplingParams
from ajet.core.inference.replica import ReplicaDown
from ajet.core.process.descriptors import raise_descriptor_limit
from ajet.core.record.run_folder import RunFolder

if TYPE_CHECKING:
    from ajet.core.inference.replica import Replica
    from ajet.core.weight_sync.manifest import SyncReport, WeightSource
    from ajet.servers.environment import ServerName
    from ajet.servers.serving import ServerSpec

COALESCE_S = 0.002
"""Requests within this time are sent in one call: a call of a Ray actor costs each side almost a
millisecond of CPU time, and hundreds of episodes make requests at the same time."""
LEAVE_S = 0.1
"""Engines are told in one call which episodes have ended within this time; nobody waits for it."""
Request = tuple[list[int], SamplingParams, str]
Outcome = tuple[str, Completion | BaseException]
"""A request's id, and its completion or its error."""


class EngineProcess:
    """The actor's class: an in-process replica, or the client of a server that it starts."""

    def __init__(self, import_env: ImportEnv) -> None:
        self._import_env = import_env
        self._outcomes: defaultdict[str, asyncio.Queue[Outcome]] = defaultdict(asyncio.Queue)

    async def is_there(self) -> None:
        """Returns at once; awaiting it waits until Ray has started the process."""

    async def check(self, config: AjetConfig, engine: ServerName, on_gpu: bool) -> None:
        """Raises ConfigError if this process's machine lacks the server."""
        self._import_env.enter()
        from ajet.servers.serving import require_engine

        require_engine(config, engine, on_gpu=on_gpu)

    async def start(
        self,
        config: AjetConfig,
        name: str,
        server: ServerSpec | None,
        images: SharedImages | None = None,
    ) -> int:
        """Loads the model, in this process or in a server; returns this process's id."""
        self._import_env.enter()
        raise_descriptor_limit()
        use_interface_of(ray.util.get_node_ip_address())
        from ajet import assembly
        from ajet.servers.serving import start_server

        if server is None:
            assembly.prepare_torch(config)
            store = images and images.store()
            self._replica: Replica = assembly.make_replica(config, name, store)
        else:
            log = RunFolder(config.run_folder).logs / f"{name.replace(' ', '_')}.log"
            processor = images and images.processor()
            self._replica = await start_server(
                config, server, name=name, log_path=log, images=processor
            )
        return os.getpid()

    async def submit(self, client: str, requests: Sequence[Request]) -> None:
        """Starts these requests; `take` returns their outcomes."""
        for request in requests:
            prompt_ids, sampling, request_id = request
            task = asyncio.create_task(self._replica.generate(prompt_ids, sampling, request_id))
            task.add_done_callback(partial(self._finished, client, request_id))

    async def take(self, client: str) -> list[Outcome]:
        """Waits for an outcome of this client's requests; returns all since the last call."""
        outcomes = self._outcomes[client]
        batch = [await outcomes.get()]
        await asyncio.sleep(COALESCE_S)  # for others of the same decoding step
        while not outcomes.empty():
            batch.append(outcomes.get_nowait())
        return batch

    def _finished(self, client: str, request_id: str, task: asyncio.Task[Completion]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        # The client has the prompt, and prompts are long: it is not sent back.
        outcome = error if error is not None else replace(task.result(), prompt_ids=())
        self._outcomes[client].put_nowait((request_id, outcome))

    async def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the `Replica` in this process."""
        return await getattr(self._replica, method)(*arguments)

    async def abort(self, request_id: str) -> None:
        await asyncio.sleep(0)  # lets a request that was submitted just before begin
        self._replica.abort(request_id)

    async def leave(self, episode_ids: Sequence[str]) -> None:
        for episode_id in episode_ids:
            self._replica.leave(episode_id)


class ActorReplica:
    """A `Replica` whose engine lives in an actor."""

    version: int | None = None  # unknown, so the router always loads weights into a new replica

    def __init__(self, name: str, actor: Any) -> None:
        self.name = name
        self._actor = actor
        self._client = secrets.token_hex(8)
        self._pending: list[Request] = []
        self._waiting: dict[str, asyncio.Future[Completion]] = {}
        self._left: list[str] = []
        self._sending: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        """Samples like `ModelEndpoint.generate`. Requests within `COALESCE_S` are sent together."""
        future = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        self._pending.append((prompt_ids, sampling, request_id))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        try:
            return replace(await future, prompt_ids=tuple(prompt_ids))
        finally:
            del self._waiting[request_id]

    async def _send(self) -> None:
        await asyncio.sleep(COALESCE_S)
        requests, self._pending, self._sending = self._pending, [], None
        self._actor.submit.remote(self._client, requests)
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        """Collects outcomes while requests are waiting; if the engine ends, all of them fail."""
        try:
            while self._waiting:
                for request_id, outcome in await self.result_of(
                    self._actor.take.remote(self._client)
                ):
                    self._resolve(request_id, outcome)
        except ReplicaDown as down:
            for request_id in self._waiting:
                self._resolve(request_id, down)
        finally:
            self._listening = None

    def _resolve(self, request_id: str, outcome: Completion | BaseException) -> None:
        future = self._waiting.get(request_id)
        if future is None or future.done():  # its caller was cancelled
            return
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    async def health(self) -> None:
        await self._call("health")

    async def pause(self, abort: bool = False) -> None:
        await self._call("pause", abort)

    async def resume(self) -> None:
        await self._call("resume")

    async def sleep(self) -> None:
        await self._call("sleep")

    async def wake(self) -> None:
        await self._call("wake")

    async def load_weights(self, source: WeightSource, version: int) -> SyncReport:
        return await self._call("load_weights", source, version)

    async def empty_cache(self) -> None:
        await self._call("empty_cache")

    def abort(self, request_id: str) -> None:
        """Ends a request with the tokens that it has."""
        for request in self._pending:  # not sent yet
            if request[2] == request_id:
                self._pending.remove(request)
                self._resolve(request_id, Completion(tuple(request[0]), (), (), "abort", 0))
                return
        self._actor.abort.remote(request_id)

    def leave(self, episode_id: str) -> None:
        self._left.append(episode_id)

        async def tell_left() -> None:
            await asyncio.sleep(LEAVE_S)
            episode_ids, self._left, self._telling = self._left, [], None
            self._actor.leave.remote(episode_ids)

        if self._telling is None:
            self._telling = asyncio.create_task(tell_left())

    async def close(self) -> None:
        ray.kill(self._actor)

    async def _call(self, method: str, *arguments: Any) -> Any:
        return await self.result_of(self._actor.call.remote(method, *arguments))

    async def result_of(self, call: Any) -> Any:
        """Awaits a call of the engine's process; raises ReplicaDown if the process has ended."""
        try:
            return await call
        except RayActorError as error:
            raise ReplicaDown(f"{self.name}: its process ended") from error
        except RayTaskError as error:
            raise error.cause from None
