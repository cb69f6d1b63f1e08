"""Gives an agent an environment in which every call is awaited, bounded in time and checked.

Whatever the environment does, the agent sees a plain value or an `EnvironmentFault` of one line.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Literal, Protocol, TypeVar

from loguru import logger

from ajet.core.environment.environment import Environment, Frame
from ajet.core.environment.isolated import ProcessEnvironment
from ajet.core.environment.registry import EnvironmentMaker
from ajet.core.environment.returns import (
    ResetResult,
    StepResult,
    checked_instruction,
    checked_reset,
    checked_step,
)
from ajet.core.errors import EnvironmentFault
from ajet.core.process.interrupt import is_from_user_code
from ajet.core.text.error_text import one_line

Isolation = Literal["auto", "inline", "thread", "process"]
Result = TypeVar("Result")

CLOSE_TIMEOUT_S = 2.0
"""How long a `close()` is awaited."""
_closing_tasks: set[asyncio.Task[None]] = set()
"""Tasks that close environments, and outlive the cancellation of their episode. The event loop has
only weak references to tasks."""


class LiveEnvironment(Protocol):
    """Describes one episode's environment as an agent calls it."""

    @property
    def instruction(self) -> str: ...

    async def reset(self, seed: int, options: Mapping[str, Any]) -> ResetResult: ...

    async def step(self, action: str) -> StepResult: ...

    async def render(self) -> Frame: ...


def open_environment(
    maker: EnvironmentMaker,
    isolation: Isolation = "auto",
    step_timeout_s: float = 60.0,
    max_env_num_per_worker: int = 16,
) -> AbstractAsyncContextManager[LiveEnvironment]:
    """Returns a context manager that makes the environment and closes it.

    isolation     default for                  a call that hangs
    inline        classes with `is_quick`      blocks the run: nothing can interrupt it
    thread        all others                   EnvironmentFault; the thread is abandoned
    process       never (isolated.py)          EnvironmentFault; the process is killed when empty
    """
    if isolation == "inline" or (isolation == "auto" and maker.environment_class.is_quick):
        return InlineEnvironment(maker)
    if isolation == "process":
        return ManagedEnvironment(ProcessEnvironment(maker, step_timeout_s, max_env_num_per_worker))
    return ManagedEnvironment(ThreadEnvironment(maker, step_timeout_s))


class ManagedEnvironment(AbstractAsyncContextManager[LiveEnvironment]):
    """Opens and closes an environment in a thread or a process."""

    def __init__(self, environment: ThreadEnvironment | ProcessEnvironment) -> None:
        self._environment = environment

    async def __aenter__(self) -> LiveEnvironment:
        try:
            await self._environment.make()
        except BaseException:
            await self._close()
            raise
        return self._environment

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _close(self) -> None:
        task = asyncio.create_task(self._environment.close())
        _closing_tasks.add(task)
        task.add_done_callback(_closing_tasks.discard)
        await asyncio.shield(task)  # closing continues when the episode is cancelled


class InlineEnvironment(AbstractAsyncContextManager["InlineEnvironment"]):
    """Runs calls on the event loop, for environments that never wait."""

    def __init__(self, maker: EnvironmentMaker) -> None:
        self._maker = maker
        self._name = maker.environment_class.__name__
        self._step_name = f"{self._name}.step()"

    async def __aenter__(self) -> InlineEnvironment:
        self._environment = call_environment(self._maker, f"{self._name}()")
        self._step = self._environment.step  # looked up once: quick games make many steps
        return self

    async def __aexit__(self, *_: object) -> None:
        close_quietly(self._environment)

    @property
    def instruction(self) -> str:
        return call_environment(
            lambda: checked_instruction(self._environment, self._name), self._name
        )

    async def reset(self, seed: int, options: Mapping[str, Any]) -> ResetResult:
        call_name = f"{self._name}.reset()"
        return call_environment(
            lambda: checked_reset(self._environment.reset(seed, options), call_name), call_name
        )

    async def step(self, action: str) -> StepResult:
        return call_environment(
            lambda: checked_step(self._step(action), self._step_name), self._step_name
        )

    async def render(self) -> Frame:
        return call_environment(self._environment.render, f"{self._name}.render()")


class ThreadEnvironment:
    """Runs all calls of one environment in one thread, in order: an environment may hold objects
    that belong to the thread which made them, as SQLite connections do."""

    def __init__(self, maker: EnvironmentMaker, step_timeout_s: float | None) -> None:
        self._maker = maker
        self._name = maker.environment_class.__name__
        self._timeout_s = step_timeout_s
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._environment: Environment | None = None
        self._hangs = False
        self.instruction = ""

    async def make(self) -> None:
        """Makes the environment in its thread. Raises EnvironmentFault where that fails."""

        def construct() -> str:
            self._environment = self._maker()
            return checked_instruction(self._environment, self._name)

        # A daemon, since a call that hangs must not keep the process from ending.
        thread = threading.Thread(target=self._work, name=f"ajet-{self._name}", daemon=True)
        thread.start()
        self.instruction = await self._ask(f"{self._name}()", construct)

    async def reset(self, seed: int, options: Mapping[str, Any]) -> ResetResult:
        call_name = f"{self._name}.reset()"
        return await self._ask(
            call_name, lambda: checked_reset(self._made_environment.reset(seed, options), call_name)
        )

    async def step(self, action: str) -> StepResult:
        call_name = f"{self._name}.step()"
        return await self._ask(
            call_name, lambda: checked_step(self._made_environment.step(action), call_name)
        )

    async def render(self) -> Frame:
        return await self._ask(f"{self._name}.render()", lambda: self._made_environment.render())

    async def close(self) -> None:
        """Asks the thread to close the environment and to end. A thread that hangs does so when its
        call returns."""
        closed = self._post("close()", lambda: close_quietly(self._environment))
        self._jobs.put(None)  # ends the thread
        if not self._hangs:
            await asyncio.wait({closed}, timeout=CLOSE_TIMEOUT_S)
        if not closed.done():
            logger.warning("{}: its thread hangs and is abandoned", self._name)

    @property
    def _made_environment(self) -> Environment:
        assert self._environment is not None
        return self._environment

    async def _ask(self, call_name: str, job: Callable[[], Result]) -> Result:
        future = self._post(call_name, job)
        await asyncio.wait({future}, timeout=self._timeout_s)
        if future.done():
            return future.result()
        self._hangs = True  # `close` then does not wait for the thread
        raise EnvironmentFault(
            f"{call_name} gave no answer within {self._timeout_s:g} s (step_timeout_s)"
        )

    def _post(self, call_name: str, job: Callable[[], Result]) -> asyncio.Future[Result]:
        """Queues a job for the thread and returns its future result."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def run() -> None:
            result, fault = None, None
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001  # the environment may raise anything
                fault = _fault(call_name, error)
            with suppress(RuntimeError):  # the loop is closed: nobody waits for the result
                loop.call_soon_threadsafe(_resolve, future, result, fault)

        self._jobs.put(run)
        return future

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def call_environment(call: Callable[[], Result], call_name: str) -> Result:
    """Returns the result of a call of an environment. Whatever the call raises, and whatever the
    methods of a returned value raise when it is checked, becomes an EnvironmentFault."""
    try:
        return call()
    except EnvironmentFault:
        raise
    except BaseException as error:  # the environment may raise anything
        if isinstance(error, KeyboardInterrupt) and not is_from_user_code(error):  # Ctrl-C
            raise
        raise _fault(call_name, error) from error


def close_quietly(environment: Environment | None) -> None:
    """Closes the environment. An exception is only logged, since the episode is over."""
    if environment is None:
        return
    try:
        environment.close()
    except (Exception, SystemExit) as error:  # noqa: BLE001  # the environment may raise anything
        logger.warning("{}.close() raised {}", type(environment).__name__, one_line(error))


def _fault(call_name: str, error: BaseException) -> EnvironmentFault:
    if isinstance(error, EnvironmentFault):
        return error
    fault = EnvironmentFault(f"{call_name} raised {one_line(error)}")
    fault.__cause__ = error
    return fault


def _resolve(future: asyncio.Future[Any], result: Any, fault: EnvironmentFault | None) -> None:
    if future.done():  # cancelled: the caller has given up
        return
    if fault is None:
        future.set_result(result)
        return
    future.set_exception(fault)
    future.exception()  # marks it as retrieved, which avoids a warning where nobody reads it
