"""The interface of a replica, and the gate that holds its requests while weights or memory change.

Router ──generate──> Replica   InProcessReplica   a model in this process
       ──health────>           VllmReplica        a vLLM server over HTTP
       ──load_weights──>       SglangReplica      an SGLang server over HTTP
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ajet.core.inference.endpoint import Completion, SamplingParams
    from ajet.core.weight_sync.manifest import SyncReport, WeightSource


class ReplicaDown(Exception):
    """Raised when a replica does not answer; the request may be sent to another one. The message
    names the replica. `http_status` is that of a server's answer."""

    def __init__(self, message: str, *, http_status: int | None = None) -> None:
        super().__init__(message)
        self.http_status = http_status


class Replica(Protocol):
    """An engine with a separate copy of the weights, which can pause, sleep and reload. A class
    that wraps a replica, such as `ActorReplica`, has the same interface."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int | None:
        """The version of its weights, or None if it is not known."""
        ...

    def abort(self, request_id: str) -> None:
        """Ends a request with the tokens sampled so far; does not wait."""
        ...

    def leave(self, episode_id: str) -> None:
        """Notes that an episode is over and its prefix may be dropped; does not wait."""
        ...

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        """Samples like `ModelEndpoint.generate`; raises `ReplicaDown` without an answer."""
        ...

    async def health(self) -> None:
        """Raises `ReplicaDown` if the replica is not well."""
        ...

    async def pause(self, abort: bool = False) -> None:
        """Holds new requests, and returns when none is running. With `abort`, running requests end
        now with the tokens sampled so far and `finish_reason="abort"`."""
        ...

    async def resume(self) -> None:
        """Lets held and new requests run; without effect unless paused."""
        ...

    async def sleep(self) -> None:
        """Pauses, then frees the memory of the cache, and that of the weights if they can be moved
        off the device."""
        ...

    async def wake(self) -> None:
        """Allocates the memory of the weights, and that of the cache now or at `resume`, until
        which requests are held."""
        ...

    async def load_weights(self, source: WeightSource, version: int) -> SyncReport:
        """Waits for running requests, loads new weights, checks their checksum and empties the
        cache. Later completions have `version`. After a `WeightsError` the replica still has the
        old weights."""
        ...

    async def empty_cache(self) -> None:
        """Forgets every cached prefix; running requests continue."""
        ...

    async def close(self) -> None:
        """Stops the replica; running requests fail with `ReplicaDown`."""
        ...


class Gate:
    """Lets requests in while it is open, and holds them while it is shut. It starts open, and is
    for one event loop.

        if not await gate.enter(request_id): …given up while it was held
        try: …generate…
        finally: gate.leave(request_id)

        gate.shut();  await gate.empty();  …change the weights…;  gate.open()
    """

    def __init__(self) -> None:
        self.is_open = True
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        self._inside: set[str] = set()
        self._left_event = asyncio.Event()

    @property
    def inside(self) -> list[str]:
        """The requests that have entered and not left, sorted by id."""
        return sorted(self._inside)

    async def enter(self, request_id: str) -> bool:
        """Waits until the gate is open. Returns False if the request was given up while waiting."""
        if request_id in self._inside or request_id in self._waiting:
            raise ValueError(f"request {request_id!r} is already under way")
        while not self.is_open:  # the gate may be shut again before a held request runs
            self._waiting[request_id] = asyncio.get_running_loop().create_future()
            try:
                if not await self._waiting[request_id]:
                    return False
            finally:
                del self._waiting[request_id]
        self._inside.add(request_id)
        return True

    def leave(self, request_id: str) -> None:
        """Removes a request that was answered or cancelled."""
        self._inside.discard(request_id)
        self._left_event.set()

    def give_up(self, request_id: str) -> bool:
        """Makes the `enter` of a held request return False. Returns whether it was held."""
        waiting = self._waiting.get(request_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(False)
        return waiting is not None

    def shut(self) -> None:
        """Holds the requests that come from now on."""
        self.is_open = False

    def open(self) -> None:
        """Lets all held requests in, in the order of their arrival."""
        self.is_open = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(True)

    async def empty(self) -> None:
        """Waits until no request is inside."""
        while self._inside:
            self._left_event.clear()
            await self._left_event.wait()
