"""Holds the calls that another process has not answered yet, each by its number.

{"number": 3, …}  ─────>  the process  ─────>  {"number": 3, "result": …}, or "fault": "…"
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ajet.core.errors import EnvironmentFault


class PendingCalls:
    """Holds the pending calls of one event loop to one process. `prefix` begins each fault."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._last_number = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    def begin(self) -> tuple[int, asyncio.Future[Any]]:
        """Returns the number of a new call and the future of its answer."""
        self._last_number += 1
        answer = asyncio.get_running_loop().create_future()
        self._waiting[self._last_number] = answer
        return self._last_number, answer

    def forget(self, number: int) -> None:
        """Removes a call whose answer nobody waits for."""
        self._waiting.pop(number, None)

    def deliver(self, message: Mapping[str, Any]) -> None:
        """Passes an answer to its caller; one that nobody waits for is dropped."""
        waiting = self._waiting.get(message["number"])
        if waiting is None or waiting.done():
            return
        if "fault" in message:
            waiting.set_exception(EnvironmentFault(f"{self._prefix}{message['fault']}"))
        else:
            waiting.set_result(message["result"])

    def fail(self, reason: str) -> None:
        """Ends all calls with an EnvironmentFault."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(EnvironmentFault(reason))
