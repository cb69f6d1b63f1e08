"""Handles Ctrl-C: the first finishes the step, saves and stops; the second stops at once."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Stores whether somebody asked the run to stop after this step."""

    def __init__(self, on_first: Callable[[], None] = lambda: None) -> None:
        self.requested = False
        self.on_first = on_first

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self.on_first()


@contextmanager
def catch_interrupts() -> Iterator[Interrupt]:
    """Lets SIGINT and SIGTERM set `requested` within the block; a second one raises
    KeyboardInterrupt."""
    interrupt = Interrupt()
    before = {
        number: signal.signal(number, interrupt._handle)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
