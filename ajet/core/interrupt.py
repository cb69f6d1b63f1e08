"""Handles Ctrl-C and SIGTERM: the first finishes the step, saves and stops; the second stops at
once."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALLED = 128


def nothing() -> None:
    """Does nothing when a stop is asked for."""


class Interrupted(KeyboardInterrupt):
    """Raised at once, wherever the main thread is, by a person's second Ctrl-C."""


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
            raise Interrupted
        self.requested = True
        self.on_first()


@contextmanager
def catch_interrupts(interrupt: Interrupt | None = None) -> Iterator[Interrupt]:
    """Lets SIGINT and SIGTERM set `requested` within the block; a second one raises
    `Interrupted`."""
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


def is_from_user_code(error: BaseException) -> bool:
    """Tells a KeyboardInterrupt that user code raises itself from a person's Ctrl-C. Without
    `catch_interrupts` they are the same, and it is taken for a person's."""
    handler = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    return isinstance(handler, Interrupt) and not isinstance(error, Interrupted)
