"""Shares one call among several tasks that wait for it.

    calls = SharedCalls()
    answer = await calls.join(key, ask)     # ask() runs once, however many join meanwhile

A cancelled task does not affect the others that wait; with the last one the call is cancelled.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class SharedCall(Generic[Result]):
    """Runs a coroutine in a task of its own, starting at once."""

    def __init__(self, call: Coroutine[Any, Any, Result]) -> None:
        self._task = asyncio.create_task(call)
        self._num_waiting = 0

    @property
    def is_wanted(self) -> bool:
        """Returns True while anybody waits for the call."""
        return self._num_waiting > 0

    async def result(self) -> Result:
        """Waits for the call and returns its result; the call is cancelled with the last one that
        waits."""
        self._num_waiting += 1
        try:
            return await asyncio.shield(self._task)
        finally:
            self._num_waiting -= 1
            if not self._num_waiting:
                self._task.cancel()


class SharedCalls(Generic[Result]):
    """Holds the calls in progress, by key."""

    def __init__(self) -> None:
        self._calls: dict[str, SharedCall[Result]] = {}

    async def join(self, key: str, begin: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Waits for the call with this key and returns its result; `begin` makes the call if there
        is none."""
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = SharedCall(begin())
        try:
            return await call.result()
        finally:
            if not call.is_wanted and self._calls.get(key) is call:
                del self._calls[key]
