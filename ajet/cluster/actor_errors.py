"""Turns Ray's errors of a lost process into `ProcessLost`.

try: await actor.method.remote(…)
except RayActorError    ->  ProcessLost("trainer rank 1")      the run resumes from a checkpoint
except ObjectLostError  ->  the same: its node is lost, with the result
except RayTaskError     ->  the method's own error, as if it were raised here
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

GRACE_S = 5.0
"""How long to wait for other processes' errors: if one is lost, those that need it fail soon."""


class ProcessLost(Exception):
    """A process that the run needs has ended; the message is one line."""


async def result_of(call: Awaitable[Any], name: str) -> Any:
    """Awaits a call of an actor's method and returns its result; `name` is the process's name."""
    try:
        return await call
    except (RayActorError, ObjectLostError) as error:
        raise ProcessLost(f"{name} is lost: its process ended") from error
    except RayTaskError as error:
        raise error.cause from None


async def results_of(calls: Sequence[Awaitable[Any]], names: Sequence[str]) -> list[Any]:
    """Awaits calls of processes that work together and returns their results. If a process is lost
    the others fail too; then `ProcessLost` is raised and not their errors."""
    tasks = [asyncio.ensure_future(result_of(*pair)) for pair in zip(calls, names, strict=True)]
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
