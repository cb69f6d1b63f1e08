"""Shares one call among several tasks that wait for it.

Cancelling a task does not affect the others that wait; with the last one the call is cancelled.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class SharedCall(Generic[Result]):
    """Runs a coroutine in a separate task, starting immediately."""

    def __init__(self, call: Coroutine[Any, Any, Result]) -> None:
        self._task = asyncio.create_task(call)
        self._num_waiting = 0

    @property
    def is_wanted(self) -> bool:
        """True while any task waits for the call."""
        return self._num_waiting > 0

    async def result(self) -> Result:
        """Waits for the call and returns its result. When the last waiting task is cancelled, so is
        the call."""
        self._num_waiting += 1
        try:
            return await asyncio.shield(self._task)
        finally:
            self._num_waiting -= 1
            if not self._num_waiting:
                self._task.cancel()


class SharedCalls(Generic[Result]):
    """The calls in progress, by key."""

    def __init__(self) -> None:
        self._calls: dict[str, SharedCall[Result]] = {}

    async def join(self, key: str, begin: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Waits for the call with this key and returns its result; starts `begin()` if there is
        none."""
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = SharedCall(begin())
        try:
            return await call.result()
        finally:
            if not call.is_wanted and self._calls.get(key) is call:
                del self._calls[key]
