"""Handles Ctrl-C and SIGTERM: the first finishes the step, saves and stops; the second stops at
once."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALLED = 128


def nothing() -> None:
    """Does nothing when a stop is asked for."""


class Interrupt:
    """Stores whether somebody asked the run to stop after this step, and whether it did stop before
    its end because of that."""

    def __init__(self, on_first: Callable[[], None] = nothing) -> None:
        self.requested = False
        self.stopped_early = False
        self.exit_code = SIGNALLED + signal.SIGINT
        """The exit code of a command that a signal stopped, as in a shell: 130 for SIGINT, 143 for
        SIGTERM."""
        self.on_first = on_first

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.exit_code = SIGNALLED + number
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self.on_first()


@contextmanager
def catch_interrupts(interrupt: Interrupt | None = None) -> Iterator[Interrupt]:
    """Lets SIGINT and SIGTERM set `requested` within the block; a second one raises
    KeyboardInterrupt."""
    interrupt = interrupt or Interrupt()
    before = {
        number: signal.signal(number, interrupt._handle)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
