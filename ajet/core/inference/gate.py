"""A gate that holds requests while weights or memory change. For one event loop.

if not await gate.enter(request_id): …given up while it was held
try: …generate…
finally: gate.leave(request_id)

gate.shut();  await gate.empty();  …change the weights…;  gate.open()
"""

from __future__ import annotations

import asyncio


class Gate:
    """Lets requests in while it is open, and holds them while it is shut. It starts open."""

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
