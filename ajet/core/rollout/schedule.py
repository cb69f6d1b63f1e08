"""Starts episodes in their order, at most `limit` at once, whatever ends first.

    waiting   e5 e6 e7 …          next() is called when a slot comes free
    running   e1 e2 e3 e4         each holds a Slot from its start to the end of its workflow

An endpoint that forms its batches in a deterministic order is told who is live (`enter`, `leave`).
The next episode enters before the one that made room leaves, so there is no moment at which the
endpoint could start a batch without it: which requests are batched never depends on timing.

`drop` takes episodes out: one that waits never starts, one that runs is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
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
        self.is_free = False

    def renew(self, episode_id: str) -> None:
        """The same place for another attempt."""
        self._live.enter(episode_id)
        self._live.leave(self._episode_id)
        self._episode_id = episode_id

    def free(self) -> None:
        if not self.is_free:
            self.is_free = True
            self._on_free()
            self._live.leave(self._episode_id)


class LiveEpisodes:
    """Tells the endpoint, if it wants to know."""

    def __init__(self, endpoint: object) -> None:
        self.enter: Callable[[str], None] = getattr(endpoint, "enter", _ignore)
        self.leave: Callable[[str], None] = getattr(endpoint, "leave", _ignore)
        self.ask_before_waves: Callable[[Callable[[], bool] | None], bool] = getattr(
            endpoint, "ask_before_waves", _has_no_waves
        )


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
        self.live = LiveEpisodes(endpoint)
        self._run = run
        self._next = 0
        self._stopped = False
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._slots: dict[int, Slot] = {}
        self._dropped: set[int] = set()
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
        for task in self._tasks.values():
            task.cancel()

    def drop(self, indices: Iterable[int]) -> None:
        """Cancel these, or do not start them; those whose slot is free go on being judged."""
        for index in set(indices) - self._dropped:
            self._dropped.add(index)
            if index in self._slots and not self._slots[index].is_free:
                self._tasks[index].cancel()

    @property
    def is_dropping(self) -> bool:
        """Whether one that was dropped has not left yet."""
        return any(not slot.is_free for i, slot in self._slots.items() if i in self._dropped)

    def _admit(self, count: int) -> None:
        if self._stopped:
            return
        indices = self._take(count)
        for index in indices:
            self.live.enter(self._plans[index].episode_id)
        for index in indices:
            episode_id = self._plans[index].episode_id
            self._slots[index] = Slot(self.live, episode_id, lambda: self._admit(1))
            self._tasks[index] = asyncio.create_task(self._hold(index, self._slots[index]))
            self._tasks[index].add_done_callback(partial(self._forget, index))

    def _take(self, count: int) -> list[int]:
        """The next plans that are not dropped."""
        taken: list[int] = []
        while len(taken) < count and self._next < len(self._plans):
            taken += [self._next] if self._next not in self._dropped else []
            self._next += 1
        return taken

    async def _hold(self, index: int, slot: Slot) -> None:
        try:
            self._results[index] = await self._run(self._plans[index], slot)
        finally:
            slot.free()

    def _forget(self, index: int, task: asyncio.Task[None]) -> None:
        del self._tasks[index]
        self._slots.pop(index).free()  # one that was cancelled before its first line is there still
        error = None if task.cancelled() else task.exception()
        self._failure = self._failure or error
        if not self._tasks or self._failure is not None:
            self._wake.set()

    async def _end(self) -> None:
        self.stop()
        while self._tasks:
            await asyncio.wait(set(self._tasks.values()))


def _ignore(_episode_id: str) -> None:
    """The endpoint keeps no list of live episodes."""


def _has_no_waves(_ask: Callable[[], bool] | None) -> bool:
    return False
