"""Says what an episode does now: the call that the other episodes may have to wait for.

    activity = Activity("000003-train-0004-02")     # one for each attempt at an episode
    activity.enter()                                # for this task, and all that it starts
    with in_call("tool get_weather"):               # in a tool, an environment, a judge
        …
    activity.now()  ->  CurrentCall("tool get_weather", 12.4)
    activity.calls  ->  (TimedCall("tool get_weather", 3.1, 15.5),)     # once it has returned

Between such calls it is the workflow's own code, with its line where the frames tell it. Not
covered: who waits for it (rollout/watch.py).
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ajet.core.error_text import user_line
from ajet.core.plain_value import plain_text

MAX_CALLS = 4096
"""The calls of one attempt that are kept; what an episode does after them is not."""
MAX_NAME = 200

_activity: contextvars.ContextVar[Activity | None] = contextvars.ContextVar(
    "ajet_activity", default=None
)


@dataclass(frozen=True, slots=True)
class CurrentCall:
    """Holds what an episode does, for how many seconds, whether it is a call of the model, and how
    many seconds ago the attempt began."""

    name: str
    seconds: float
    is_model: bool = False
    episode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TimedCall:
    """Holds a call of a tool, an environment or a judge that has returned. Its times are seconds
    since the attempt began."""

    name: str
    started_s: float
    ended_s: float


class Activity:
    """Holds the calls of one attempt at an episode: those that have not returned, and the first
    `MAX_CALLS` that have, but for those of the model. Threads of the episode may add theirs.
    `began_unix_s` is when it was made."""

    def __init__(self, episode_id: str) -> None:
        self.episode_id = episode_id
        self.began_unix_s = time.time()
        self._began_s = time.monotonic()
        self._returned: list[TimedCall] = []
        self._numbers = itertools.count()
        self._calls: dict[int, tuple[str, float]] = {}
        self._model_calls: dict[int, float] = {}
        self._since_s = time.monotonic()
        self._task: asyncio.Task[Any] | None = None
        self._thread: int | None = None

    def enter(self) -> None:
        """Makes this the activity of the running task and of all that it starts."""
        _activity.set(self)

    def runs_in(self, task: asyncio.Task[Any]) -> None:
        """Says which task runs the workflow."""
        self._task = task

    @contextmanager
    def calling(self, name: str) -> Iterator[None]:
        """Surrounds a call of something that is not the model."""
        number = next(self._numbers)
        self._calls[number] = (name, time.monotonic())
        try:
            yield
        finally:
            _, started_s = self._calls.pop(number)
            self._since_s = time.monotonic()
            if len(self._returned) < MAX_CALLS:
                times = (started_s - self._began_s, self._since_s - self._began_s)
                self._returned.append(TimedCall(plain_text(name, MAX_NAME), *times))

    @contextmanager
    def calling_model(self) -> Iterator[None]:
        """Surrounds a call of the model."""
        number = next(self._numbers)
        self._model_calls[number] = time.monotonic()
        try:
            yield
        finally:
            del self._model_calls[number]
            self._since_s = time.monotonic()

    @property
    def calls(self) -> tuple[TimedCall, ...]:
        """Returns the calls that have returned, in the order in which they did."""
        return tuple(self._returned)

    def now(self) -> CurrentCall:
        """Returns the oldest call that has not returned; the model's only where there is no other.
        Other threads may call it."""
        now_s = time.monotonic()
        age_s = now_s - self._began_s
        for name, since_s in list(self._calls.values()):
            return CurrentCall(name, now_s - since_s, episode_s=age_s)
        for since_s in list(self._model_calls.values()):
            return CurrentCall("the model", now_s - since_s, is_model=True, episode_s=age_s)
        line = self._line()
        name = f"workflow code at {line}" if line else "workflow code"
        return CurrentCall(name, now_s - self._since_s, episode_s=age_s)

    def _line(self) -> str:
        """Returns the innermost line of the user's code that runs or waits; "" if none is seen."""
        if self._thread is not None:
            frame = sys._current_frames().get(self._thread)
            return user_line(traceback.extract_stack(frame)) if frame else ""
        return "" if self._task is None else user_line(_awaiting_frames(self._task.get_coro()))


@contextmanager
def in_call(name: str) -> Iterator[None]:
    """Surrounds a call that an episode waits for; outside an episode it does nothing."""
    activity = _activity.get()
    if activity is None:
        yield
        return
    with activity.calling(name):
        yield


def runs_in_this_thread() -> None:
    """Says that the episode's workflow runs in this thread."""
    activity = _activity.get()
    if activity is not None:
        activity._thread = threading.get_ident()


def _awaiting_frames(awaited: Any) -> list[traceback.FrameSummary]:
    """Returns the lines at which a coroutine, and each that it awaits in turn, stands."""
    frames: list[traceback.FrameSummary] = []
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            code = frame.f_code
            frames.append(traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return frames
