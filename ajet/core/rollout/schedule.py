"""Starts episodes in their order, at most `limit` at once, whatever ends first.

    waiting   e5 e6 e7 …          next() is called when a slot comes free
    running   e1 e2 e3 e4         each holds a Slot from its start to the end of its workflow

An endpoint that forms its batches in a deterministic order is told who is live (`enter`, `leave`).
The next episode enters before the one that made room leaves, so there is no moment at which the
endpoint could start a batch without it: which requests are batched never depends on timing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar


class Planned(Protocol):
    """What the schedule needs to know of an episode."""

    @property
    def episode_id(self) -> str: ...


Plan = TypeVar("Plan", bound=Planned)
Result = TypeVar("Result")


class Slot:
    """One running episode's place. `free` is called when its workflow is over; the episode may
    then still be judged."""

    def __init__(self, live: LiveEpisodes, episode_id: str, on_free: Callable[[], None]) -> None:
        self._live = live
        self._episode_id = episode_id
        self._on_free = on_free
        self._is_free = False

    def renew(self, episode_id: str) -> None:
        """The same place for another attempt."""
        self._live.enter(episode_id)
        self._live.leave(self._episode_id)
        self._episode_id = episode_id

    def free(self) -> None:
        if not self._is_free:
            self._is_free = True
            self._on_free()
            self._live.leave(self._episode_id)


class LiveEpisodes:
    """Tells the endpoint, if it wants to know."""

    def __init__(self, endpoint: object) -> None:
        self.enter: Callable[[str], None] = getattr(endpoint, "enter", _ignore)
        self.leave: Callable[[str], None] = getattr(endpoint, "leave", _ignore)


class Schedule(Generic[Plan, Result]):
    """Runs every plan once; `results` are in the order of the plans."""

    def __init__(
        self,
        plans: Sequence[Plan],
        *,
        limit: int,
        endpoint: object,
        run: Callable[[Plan, Slot], Awaitable[Result]],
    ) -> None:
        self._plans = plans
        self._limit = limit
        self._live = LiveEpisodes(endpoint)
        self._run = run
        self._next = 0
        self._stopped = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._results: dict[int, Result] = {}
        self._failure: BaseException | None = None
        self._wake = asyncio.Event()

    async def run(self) -> list[Result | None]:
        """All results; None for a plan that `stop` kept from starting."""
        self._admit(self._limit)
        try:
            while self._tasks and self._failure is None:
                self._wake.clear()
                await self._wake.wait()
        finally:
            await self._end()
        if self._failure is not None:
            raise self._failure
        return [self._results.get(index) for index in range(len(self._plans))]

    def stop(self) -> None:
        """Start no more, and cancel those that run."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()

    def _admit(self, count: int) -> None:
        if self._stopped:
            return
        indices = range(self._next, min(self._next + count, len(self._plans)))
        self._next = indices.stop
        for index in indices:
            self._live.enter(self._plans[index].episode_id)
        for index in indices:
            task = asyncio.create_task(self._hold(index))
            self._tasks.add(task)
            task.add_done_callback(self._forget)

    async def _hold(self, index: int) -> None:
        plan = self._plans[index]
        slot = Slot(self._live, plan.episode_id, lambda: self._admit(1))
        try:
            self._results[index] = await self._run(plan, slot)
        finally:
            slot.free()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        self._failure = self._failure or error
        if not self._tasks or self._failure is not None:
            self._wake.set()

    async def _end(self) -> None:
        self.stop()
        while self._tasks:
            await asyncio.wait(set(self._tasks))


def _ignore(_episode_id: str) -> None:
    """The endpoint keeps no list of live episodes."""
