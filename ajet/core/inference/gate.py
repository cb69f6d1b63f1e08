"""Holds requests while something changes behind them, and knows when none is left inside.

    if not await gate.enter(request_id): …given up while it was held
    try: …generate…
    finally: gate.leave(request_id)

    gate.shut();  await gate.empty();  …change the weights…;  gate.open()

Not covered: other event loops and threads.
"""

from __future__ import annotations

import asyncio


class Gate:
    """Open at first."""

    def __init__(self) -> None:
        self.is_open = True
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        self._inside: set[str] = set()
        self._left_event = asyncio.Event()

    @property
    def inside(self) -> list[str]:
        """Requests that are through, in the order of their ids."""
        return sorted(self._inside)

    @property
    def num_held(self) -> int:
        return len(self._waiting)

    async def enter(self, request_id: str) -> bool:
        """Wait until the gate is open; False where the request was given up meanwhile."""
        if request_id in self._inside or request_id in self._waiting:
            raise ValueError(f"request {request_id!r} is already under way")
        while not self.is_open:  # shut again before a held one came through: it is held again
            self._waiting[request_id] = asyncio.get_running_loop().create_future()
            try:
                if not await self._waiting[request_id]:
                    return False
            finally:
                del self._waiting[request_id]
        self._inside.add(request_id)
        return True

    def leave(self, request_id: str) -> None:
        """The request is answered, or its caller is gone."""
        self._inside.discard(request_id)
        self._left_event.set()

    def give_up(self, request_id: str) -> bool:
        """Let a held request go with nothing; whether it was held."""
        waiting = self._waiting.get(request_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(False)
        return waiting is not None

    def shut(self) -> None:
        """Hold what comes from now on."""
        self.is_open = False

    def open(self) -> None:
        """Let everything in, in the order in which it came."""
        self.is_open = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(True)

    async def empty(self) -> None:
        """Return when no request is inside."""
        while self._inside:
            self._left_event.clear()
            await self._left_event.wait()
