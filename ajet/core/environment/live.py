"""An environment in an agent's hands: every call awaited, bounded and checked.

    async with open_live(maker, isolation="auto", step_timeout_s=60) as environment:
        shown = await environment.reset(seed=7, options={"split": "train"})
        step = await environment.step("Left")                        # close() always follows

    where          whose calls                          a call that hangs
    in place       of classes with `is_quick`           holds up the run: nothing can interrupt it
    a thread       of all others                        EnvironmentFault; the thread is left behind
    a process      as the config says (isolated.py)   EnvironmentFault; killed when it is empty

Whatever the environment does, the agent sees a plain value or an `EnvironmentFault` of one line.
Not covered: what an agent does with them (agents/environment_agent.py).
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, Protocol, TypeVar

from loguru import logger

from ajet.core.environment.environment import Environment, Frame
from ajet.core.environment.isolated import InProcess
from ajet.core.environment.registry import EnvironmentMaker
from ajet.core.environment.returns import Shown, Step, checked_reset, checked_step
from ajet.core.error_text import one_line
from ajet.core.errors import EnvironmentFault

Isolation = Literal["auto", "inline", "thread", "process"]
Result = TypeVar("Result")

CLOSE_TIMEOUT_S = 2.0
"""What a `close()` may take until nobody waits for it any more."""
_closing: set[asyncio.Task[None]] = set()
"""Closing goes on when the episode's own task is cancelled; kept here until it is done."""


class LiveEnvironment(Protocol):
    """One environment of one episode."""

    @property
    def instruction(self) -> str: ...

    async def reset(self, seed: int, options: Mapping[str, Any]) -> Shown: ...

    async def step(self, action: str) -> Step: ...

    async def render(self) -> Frame: ...


def open_live(
    maker: EnvironmentMaker,
    isolation: Isolation = "auto",
    step_timeout_s: float = 60.0,
    max_env_num_per_worker: int = 16,
) -> OpenEnvironment:
    """A new environment until the end of its ``async with``."""
    if isolation == "inline" or (isolation == "auto" and maker.kind.is_quick):
        return InPlace(maker)
    if isolation == "process":
        return Apart(InProcess(maker, step_timeout_s, max_env_num_per_worker))
    return Apart(InThread(maker, step_timeout_s))


class OpenEnvironment(Protocol):
    """What `async with` opens and closes."""

    async def __aenter__(self) -> LiveEnvironment: ...

    async def __aexit__(self, *_: object) -> None: ...


class Apart:
    """An environment in a thread or a process: closing goes on when waiting for it is cancelled."""

    def __init__(self, environment: InThread | InProcess) -> None:
        self._environment = environment

    async def __aenter__(self) -> LiveEnvironment:
        try:
            await self._environment.make()
        except BaseException:
            await self._finished()
            raise
        return self._environment

    async def __aexit__(self, *_: object) -> None:
        await self._finished()

    async def _finished(self) -> None:
        task = asyncio.create_task(self._environment.close())
        _closing.add(task)
        task.add_done_callback(_closing.discard)
        await asyncio.shield(task)


class InPlace:
    """Calls on the event loop, for environments that never wait."""

    def __init__(self, maker: EnvironmentMaker) -> None:
        self._maker = maker
        self._name = maker.kind.__name__
        self._step_name = f"{self._name}.step()"

    async def __aenter__(self) -> InPlace:
        self._environment = called(self._maker, f"{self._name}()")
        self._step = self._environment.step
        return self

    async def __aexit__(self, *_: object) -> None:
        close_quietly(self._environment)

    @property
    def instruction(self) -> str:
        return str(called(lambda: self._environment.instruction, f"{self._name}.instruction"))

    async def reset(self, seed: int, options: Mapping[str, Any]) -> Shown:
        who = f"{self._name}.reset()"
        return checked_reset(called(lambda: self._environment.reset(seed, options), who), who)

    async def step(self, action: str) -> Step:
        try:
            returned = self._step(action)
        except (Exception, SystemExit) as error:  # the environment may raise anything
            raise _fault(self._step_name, error) from error
        return checked_step(returned, self._step_name)

    async def render(self) -> Frame:
        return called(self._environment.render, f"{self._name}.render()")


class InThread:
    """All calls of one environment in one thread of its own, in their order."""

    def __init__(self, maker: EnvironmentMaker, step_timeout_s: float | None) -> None:
        self._maker = maker
        self._name = maker.kind.__name__
        self._timeout_s = step_timeout_s
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._environment: Environment | None = None
        self._hangs = False
        self.instruction = ""

    async def make(self) -> None:
        """The environment, made in its thread; EnvironmentFault where that fails."""
        thread = threading.Thread(target=self._work, name=f"ajet-{self._name}", daemon=True)
        thread.start()
        self.instruction = await self._ask(f"{self._name}()", self._made)

    async def reset(self, seed: int, options: Mapping[str, Any]) -> Shown:
        who = f"{self._name}.reset()"
        return await self._ask(who, lambda: checked_reset(self._own.reset(seed, options), who))

    async def step(self, action: str) -> Step:
        who = f"{self._name}.step()"
        return await self._ask(who, lambda: checked_step(self._own.step(action), who))

    async def render(self) -> Frame:
        return await self._ask(f"{self._name}.render()", lambda: self._own.render())

    async def close(self) -> None:
        """Asks the thread to close and to end. One that hangs does so when it comes back."""
        closed = self._post("close()", lambda: close_quietly(self._environment))
        self._jobs.put(None)
        if not self._hangs:
            await asyncio.wait({closed}, timeout=CLOSE_TIMEOUT_S)
        if not closed.done():
            _count_left_behind(self._name)

    @property
    def _own(self) -> Environment:
        assert self._environment is not None
        return self._environment

    def _made(self) -> str:
        self._environment = self._maker()
        return str(self._environment.instruction)

    async def _ask(self, who: str, job: Callable[[], Result]) -> Result:
        asked = self._post(who, job)
        await asyncio.wait({asked}, timeout=self._timeout_s)
        if asked.done():
            return asked.result()
        self._hangs = True
        raise EnvironmentFault(
            f"{who} gave no answer within {self._timeout_s:g} s (step_timeout_s)"
        )

    def _post(self, who: str, job: Callable[[], Result]) -> asyncio.Future[Result]:
        loop = asyncio.get_running_loop()
        asked: asyncio.Future[Result] = loop.create_future()

        def run() -> None:
            result, fault = None, None
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001  # the environment may raise anything
                fault = _fault(who, error)
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(_settle, asked, result, fault)

        self._jobs.put(run)
        return asked

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def called(call: Callable[[], Result], who: str) -> Result:
    """What the environment gives; whatever it raises is an EnvironmentFault that names the call."""
    try:
        return call()
    except EnvironmentFault:
        raise
    except (Exception, SystemExit) as error:  # the environment may raise anything
        raise _fault(who, error) from error


def close_quietly(environment: Environment | None) -> None:
    """What a `close()` raises takes nothing from an episode that is over."""
    if environment is None:
        return
    try:
        environment.close()
    except (Exception, SystemExit) as error:  # noqa: BLE001  # the environment may raise anything
        logger.warning("{}.close() raised {}", type(environment).__name__, one_line(error))


def _fault(who: str, error: BaseException) -> EnvironmentFault:
    if isinstance(error, EnvironmentFault):
        return error
    fault = EnvironmentFault(f"{who} raised {one_line(error)}")
    fault.__cause__ = error
    return fault


def _settle(asked: asyncio.Future[Any], result: Any, fault: EnvironmentFault | None) -> None:
    if asked.done():
        return
    if fault is None:
        asked.set_result(result)
        return
    asked.set_exception(fault)
    asked.exception()  # looked at: an episode that is over asks no more


def _count_left_behind(name: str) -> None:
    logger.warning("{}: a thread that hangs in it is left behind", name)
