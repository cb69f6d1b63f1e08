"""Runs a coroutine like `asyncio.run`, but ends even if the user's code blocks.

`asyncio.run` waits for ever for a task that swallows its cancellation, and for a thread that a
workflow blocked (`asyncio.to_thread(requests.get, …)`). Such threads still delay the end of the
process (cli/process_end.py).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

GRACE_S = 2.0
MAX_THREADS = 256
"""asyncio's default is 6 on two cores: six tools that block for ever would starve the rest."""
Result = TypeVar("Result")
_abandoned: set[asyncio.Task[Any]] = set()
"""Tasks that ignore cancellation; without a reference they could be collected as they run."""


def run_bounded(main: Coroutine[Any, Any, Result], grace_s: float = GRACE_S) -> Result:
    """Runs `main` in a new event loop; the remaining tasks get `grace_s` seconds to end."""
    executor = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="ajet")
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.set_default_executor(executor)
    try:
        return loop.run_until_complete(main)
    finally:
        try:
            loop.run_until_complete(_cancel_remaining(grace_s))
        finally:
            # A remaining task is destroyed while pending; the warning about that helps nobody.
            loop.set_exception_handler(lambda _loop, _context: None)
            executor.shutdown(wait=False, cancel_futures=True)
            asyncio.set_event_loop(None)
            loop.close()


async def first_of(first: Awaitable[Any], second: Awaitable[Any]) -> Any:
    """Waits for either to end and cancels the other. Returns or raises its result; if both have
    ended, that of the first argument."""
    tasks = [asyncio.ensure_future(first), asyncio.ensure_future(second)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task.result() for task in tasks if task in done)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def abandon(task: asyncio.Task[Any]) -> None:
    """Cancels a task that may ignore it, and that nobody waits for any more."""
    task.cancel()
    _abandoned.add(task)
    task.add_done_callback(_consume_exception)


def _consume_exception(task: asyncio.Task[Any]) -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()  # marked as retrieved, or asyncio would log it


async def _cancel_remaining(grace_s: float) -> None:
    remaining = asyncio.all_tasks() - {asyncio.current_task()}
    for task in remaining:
        task.cancel()
    if remaining:
        done, _ = await asyncio.wait(remaining, timeout=grace_s)
        for task in done:
            if not task.cancelled():
                task.exception()  # marked as retrieved, or asyncio would log it
    with contextlib.suppress(TimeoutError):  # a generator may refuse to close
        await asyncio.wait_for(asyncio.get_running_loop().shutdown_asyncgens(), grace_s)


def is_being_cancelled() -> bool:
    """Returns whether the current task is being cancelled, and not only one that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
