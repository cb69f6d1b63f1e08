"""Calls between an episode's event loop and other threads.

    the loop:  await run_in_thread(workflow.execute, …)      plain code, in a new thread
    a thread:  run_blocking(recorder, recorder.chat(…))      blocks until the loop has done it
    any loop:  await run_on_loop(loop, recorder.chat(…))     the same, for code on another loop

All calls of the model are made on the loop that the episode's recorder was made on, so the
recorder, the judge and the engine's waves need no locks.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from ajet.core.errors import BlockingCall
from ajet.core.trajectory.base_recorder import BaseRecorder, running_loop
from ajet.core.trajectory.limits import EpisodeClosed
from ajet.core.user_code.activity import runs_in_this_thread

Result = TypeVar("Result")

POLL_S = 1.0
"""Seconds between a waiting thread's checks that the loop still runs."""


async def run_in_thread(
    function: Callable[..., Result], *arguments: Any, is_workflow: bool = False
) -> Result:
    """Runs `function` in a new thread, and returns or raises what it does. `is_workflow` registers
    the thread as that of the episode's activity."""
    # Not a pool, which could run out of threads: an episode that waits for a thread would hold up
    # all others that wait for its wave.
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            if is_workflow:
                context.run(runs_in_this_thread)
            post(loop, _resolve, future, context.run(function, *arguments))
        except BaseException as error:  # noqa: BLE001  # raised again where it is awaited
            post(loop, _reject, future, error)

    threading.Thread(target=run, name="ajet-workflow", daemon=True).start()
    return await future


def run_blocking(recorder: BaseRecorder, call: Coroutine[Any, Any, Result]) -> Result:
    """Runs `call` on the recorder's loop, blocks this thread meanwhile, and returns its result."""
    loop = recorder.loop
    if loop is None or not loop.is_running() or loop is running_loop():
        call.close()
        recorder.on_blocking()
        raise BlockingCall(
            "a blocking call of the model on its event loop's own thread would wait for itself: "
            "use the asynchronous form, or write `def execute`, which runs in a separate thread"
        )
    future = asyncio.run_coroutine_threadsafe(call, loop)
    while True:
        try:
            return future.result(POLL_S)
        except TimeoutError:
            if future.done():  # just now, or the call itself raised a TimeoutError
                return future.result()
            if not loop.is_running():
                raise EpisodeClosed("the event loop of the episode has ended") from None


def run_on_loop(
    loop: asyncio.AbstractEventLoop | None, call: Coroutine[Any, Any, Result]
) -> Awaitable[Result]:
    """Returns an awaitable that runs `call` on `loop`, which may be this one. Cancelling the
    awaiting task cancels `call`."""
    if loop is None or loop is running_loop():
        return call
    return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, loop))


def post(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: Any) -> None:
    """Calls the function on the loop's thread; nobody waits if the loop is closed."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, *args)


def _resolve(future: asyncio.Future[Result], result: Result) -> None:
    if not future.done():
        future.set_result(result)


def _reject(future: asyncio.Future[Any], error: BaseException) -> None:
    if future.done():
        return
    # A future refuses a StopIteration, and a KeyboardInterrupt would end the event loop. The latter
    # is the workflow's: that of a person reaches only the main thread.
    if isinstance(error, StopIteration | KeyboardInterrupt):
        error = RuntimeError(type(error).__name__)
    future.set_exception(error)
