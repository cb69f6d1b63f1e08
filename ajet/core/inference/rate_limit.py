"""Limits the number of starts in any 60 seconds.

    limit = RateLimit(per_minute=2)
    await limit.wait()    # at 0 s: goes on at once; at 1 s: at once; at 2 s: waits until 60 s

A call reserves the next free start at once and sleeps until then, so calls go on in the order in
which they came. Not covered: other processes; the start of a call that is cancelled while it waits
is not given to another call.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

WINDOW_S = 60.0


class RateLimit:
    """Allows `per_minute` starts in any 60 seconds. Tests pass their own `clock` and `sleep`."""

    def __init__(
        self,
        per_minute: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._starts_s: deque[float] = deque(maxlen=per_minute)

    async def wait(self) -> None:
        now_s = self._clock()
        is_full = len(self._starts_s) == self._starts_s.maxlen
        start_s = max(now_s, self._starts_s[0] + WINDOW_S) if is_full else now_s
        self._starts_s.append(start_s)
        if start_s > now_s:
            await self._sleep(start_s - now_s)
