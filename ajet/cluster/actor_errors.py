"""A process of the run that is gone: what the loop hears, whatever Ray calls it.

try: await one.remote(…)
except RayActorError    ->  ProcessLost("trainer rank 1")      the run goes on from a checkpoint
except ObjectLostError  ->  the same: its node went, with what it had answered
except RayTaskError     ->  the error itself, as if it were raised here
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

GRACE_S = 5.0
"""When one of several is gone the others fail a moment later, for want of it."""


class ProcessLost(Exception):
    """A process ended that the run cannot do without; the message is one line."""


async def answer(call: Awaitable[Any], who: str) -> Any:
    """What an actor's method gave."""
    try:
        return await call
    except (RayActorError, ObjectLostError) as error:
        raise ProcessLost(f"{who} is lost: its process ended") from error
    except RayTaskError as error:
        raise error.cause from None


async def answers(calls: Sequence[Awaitable[Any]], who: Sequence[str]) -> list[Any]:
    """What several gave that work together. One that is lost comes before what others say of it."""
    tasks = [asyncio.ensure_future(answer(*pair)) for pair in zip(calls, who, strict=True)]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    if rest:
        more, rest = await asyncio.wait(rest, timeout=GRACE_S)
        done |= more
    for task in rest:
        task.cancel()
    errors = [error for task in done if not task.cancelled() and (error := task.exception())]
    if errors:
        raise min(errors, key=lambda error: not isinstance(error, ProcessLost))
    return [task.result() for task in tasks]
