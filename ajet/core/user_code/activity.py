"""Tracks what an episode is doing, so that the display can name a call that others wait for.

Between calls, `Activity.now` names the line of the workflow that is running or waiting.
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

from ajet.core.text.error_text import user_line
from ajet.core.text.plain_value import plain_text

MAX_CALLS = 4096
"""The number of calls that one attempt records."""
MAX_NAME = 200

_activity: contextvars.ContextVar[Activity | None] = contextvars.ContextVar(
    "ajet_activity", default=None
)


@dataclass(frozen=True, slots=True)
class CurrentCall:
    """What an episode is doing and for how long; `episode_s` is the age of the attempt."""

    name: str
    seconds: float
    is_model: bool = False
    episode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TimedCall:
    """A call of a tool, an environment or a judge that has returned, in seconds since the attempt
    began."""

    name: str
    started_s: float
    ended_s: float


class Activity:
    """The calls of one attempt at an episode: those in progress, and the first `MAX_CALLS` that
    have returned (without those of the model). Any thread of the episode may add calls."""

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
        """Makes this the activity of the running task and of all tasks that it starts."""
        _activity.set(self)

    def runs_in(self, task: asyncio.Task[Any]) -> None:
        """Sets the task that runs the workflow."""
        self._task = task

    @contextmanager
    def calling(self, name: str) -> Iterator[None]:
        """Records a call of a tool, an environment or a judge for the length of the block."""
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
        """Records a call of the model for the length of the block."""
        number = next(self._numbers)
        self._model_calls[number] = time.monotonic()
        try:
            yield
        finally:
            del self._model_calls[number]
            self._since_s = time.monotonic()

    @property
    def calls(self) -> tuple[TimedCall, ...]:
        """The calls that have returned, in that order."""
        return tuple(self._returned)

    def now(self) -> CurrentCall:
        """Returns the oldest call in progress, of the model only without others. Other
        threads may call this."""
        now_s = time.monotonic()
        age_s = now_s - self._began_s
        # Copied to lists: the episode's threads change them at any time.
        for name, since_s in list(self._calls.values()):
            return CurrentCall(name, now_s - since_s, episode_s=age_s)
        for since_s in list(self._model_calls.values()):
            return CurrentCall("the model", now_s - since_s, is_model=True, episode_s=age_s)
        line = self._line()
        name = f"workflow code at {line}" if line else "workflow code"
        return CurrentCall(name, now_s - self._since_s, episode_s=age_s)

    def _line(self) -> str:
        """Returns the innermost line of the user's code that runs or waits, or ""."""
        if self._thread is not None:
            frame = sys._current_frames().get(self._thread)
            return user_line(traceback.extract_stack(frame)) if frame else ""
        return "" if self._task is None else user_line(_awaiting_frames(self._task.get_coro()))


@contextmanager
def in_call(name: str) -> Iterator[None]:
    """Records a call that an episode waits for; outside of an episode it does nothing."""
    activity = _activity.get()
    if activity is None:
        yield
        return
    with activity.calling(name):
        yield


def runs_in_this_thread() -> None:
    """Notes that the episode's workflow runs in this thread."""
    activity = _activity.get()
    if activity is not None:
        activity._thread = threading.get_ident()


def _awaiting_frames(awaited: Any) -> list[traceback.FrameSummary]:
    """Returns the current line of a coroutine, and of each one that it awaits, outermost first."""
    frames: list[traceback.FrameSummary] = []
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            code = frame.f_code
            frames.append(traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return frames
