"""Between an episode's event loop and other threads.

    the loop:  await run_in_thread(workflow.execute, …)      plain code, in a thread of its own
    a thread:  run_blocking(loop, recorder.chat(…))          blocks until the loop has done it
    any loop:  await run_on_loop(loop, recorder.chat(…))     the same, for code on another loop

All calls of the model are made on the loop that the episode's recorder was made on: the recorder,
the judge and the engine's waves need no locks of their own then.

Not covered: ending a thread. What it still asks of the model after its episode is refused.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from ajet.core.trajectory.base_recorder import running_loop
from ajet.core.trajectory.limits import EpisodeClosed

Result = TypeVar("Result")

POLL_S = 1.0
"""So often a waiting thread looks whether the loop is still there."""


async def run_in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """What `function` returns or raises in a new thread. The threads of a pool would run out: an
    episode that waits for one holds up all that wait for the model."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            _post(loop, _resolve, future, context.run(function, *arguments))
        except BaseException as error:  # noqa: BLE001  # raised again where it is awaited
            _post(loop, _reject, future, error)

    threading.Thread(target=run, name="ajet-workflow", daemon=True).start()
    return await future


def run_blocking(
    loop: asyncio.AbstractEventLoop | None, call: Coroutine[Any, Any, Result]
) -> Result:
    """What `call` gives, run on `loop`; blocks the thread meanwhile."""
    if loop is None or not loop.is_running() or loop is running_loop():
        call.close()
        raise RuntimeError(
            "a blocking call of the model on its event loop's own thread would wait for itself: "
            "use the asynchronous form, or write `def execute`, which runs in a thread of its own"
        )
    future = asyncio.run_coroutine_threadsafe(call, loop)
    while True:
        try:
            return future.result(POLL_S)
        except TimeoutError:
            if future.done():  # in this very moment, or with an error of its own
                return future.result()
            if not loop.is_running():
                raise EpisodeClosed("the event loop of the episode has ended") from None


def run_on_loop(
    loop: asyncio.AbstractEventLoop | None, call: Coroutine[Any, Any, Result]
) -> Awaitable[Result]:
    """`call` as something to await here, run on `loop`, which may be this one. Cancelling the
    awaiting task cancels `call`."""
    if loop is None or loop is running_loop():
        return call
    return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, loop))


def _post(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: Any) -> None:
    """Call on the loop's thread; a loop that is closed has nobody waiting."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, *args)


def _resolve(future: asyncio.Future[Result], result: Result) -> None:
    if not future.done():
        future.set_result(result)


def _reject(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(_without_stop_iteration(error))


def _without_stop_iteration(error: BaseException) -> BaseException:
    """A future takes no StopIteration."""
    return RuntimeError("StopIteration") if isinstance(error, StopIteration) else error
